import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

const VERSION = '2013-12-26';
const SUCCESS = '000000';
const HOUR = 3_600_000;

/** Codes of connection attempts that failed: not one byte of the request has left. */
const NEVER_CONNECTED = new Set([
  'EAI_AGAIN', 'ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOTFOUND', 'UND_ERR_CONNECT_TIMEOUT',
]);

/** The platform cannot have seen the request. */
export class NotSent extends Error {}

/** The platform has answered no: the operation had no effect. */
export class Refused extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.code = code;
  }
}

/** The platform limits requests (HTTP 429): the operation had no effect. */
export class Throttled extends Refused {
  /** @param {number | undefined} retryAfter milliseconds that the platform asks to wait */
  constructor(retryAfter) {
    super('429', 'too many requests');
    this.retryAfter = retryAfter;
  }
}

/** No readable answer came: the platform may have done it. */
export class OutcomeUnknown extends Error {}

/**
 * A client of the platform's group operations.
 *
 * A request is repeated only if that cannot do anything twice: after NotSent and Throttled, and after OutcomeUnknown if
 * the operation is idempotent.
 */
export class GroupClient {
  #origin;
  #appId;
  #appToken;
  #userName;
  #attempts;
  #timeout;
  #now;
  #wait;

  /**
   * @param {object} options
   * @param {string} options.baseUrl
   * @param {string} options.appId
   * @param {string} options.appToken
   * @param {string} options.userName the account that acts
   * @param {number} [options.attempts] requests at most for one call
   * @param {number} [options.timeout] milliseconds for one request
   * @param {() => Date} [options.now] the clock of the signatures
   * @param {(milliseconds: number) => Promise<unknown>} [options.wait]
   */
  constructor({ baseUrl, appId, appToken, userName, ...options }) {
    const { attempts = 3, timeout = 10_000, now = () => new Date(), wait = sleep } = options;
    this.#origin = baseUrl.replace(/\/+$/, '');
    this.#appId = appId;
    this.#appToken = appToken;
    this.#userName = userName;
    this.#attempts = attempts;
    this.#timeout = timeout;
    this.#now = now;
    this.#wait = wait;
  }

  /** Create a group and return its id. It is not repeated after OutcomeUnknown: that could make a second group. */
  async createGroup({ name, type }) {
    const body = { name, type, permission: '0', target: '1' };
    const { groupId } = await this.#call('CreateGroup', body, { idempotent: false });
    return groupId;
  }

  /**
   * Invite accounts and return the entries of those that the platform refuses.
   *
   * Without confirmation the accounts join at once, and inviting a member again changes nothing. With it, each request
   * sends invitations.
   */
  async invite(groupId, members, { confirmation = false } = {}) {
    const body = { groupId, members, confirm: confirmation ? '0' : '1' };
    const { fails } = await this.#call('InviteJoinGroup', body, { idempotent: !confirmation });
    return fails ?? [];
  }

  async #call(operation, body, { idempotent }) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#send(operation, body);
      } catch (error) {
        const harmless = error instanceof NotSent || error instanceof Throttled;
        const repeatable = harmless || (idempotent && error instanceof OutcomeUnknown);
        if (!repeatable || attempt >= this.#attempts) throw error;
        await this.#wait(error.retryAfter ?? Math.random() * 200 * 2 ** attempt);
      }
    }
  }

  async #send(operation, body) {
    const stamp = timestamp(this.#now()); // of each attempt: the platform refuses old ones
    const sig = md5(this.#appId + this.#appToken + stamp);
    const path = `/${VERSION}/Application/${encodeURIComponent(this.#appId)}/IM/Group/${operation}`;
    let response;
    let text;
    try {
      response = await fetch(`${this.#origin}${path}?sig=${sig}`, {
        method: 'POST',
        redirect: 'manual', // a redirect would repeat the signature elsewhere
        signal: AbortSignal.timeout(this.#timeout),
        headers: {
          'Accept': 'application/json',
          'Content-Type': 'application/json;charset=utf-8',
          'Authorization': Buffer.from(`${this.#appId}:${stamp}`).toString('base64'),
        },
        body: JSON.stringify({ ...body, userName: this.#userName }),
      });
      text = await response.text();
    } catch (cause) {
      const Kind = NEVER_CONNECTED.has(cause.cause?.code) ? NotSent : OutcomeUnknown;
      throw new Kind(`${operation}: ${cause.cause?.message || cause.message}`, { cause });
    }
    if (response.status === 429) {
      const seconds = Number(response.headers.get('retry-after') ?? NaN);
      throw new Throttled(Number.isFinite(seconds) ? seconds * 1000 : undefined);
    }
    if (response.status >= 400 && response.status < 500) throw new Refused(String(response.status), operation);
    return this.#read(operation, response.status, text);
  }

  #read(operation, status, text) {
    let answer;
    try {
      answer = JSON.parse(text);
    } catch (cause) {
      throw new OutcomeUnknown(`${operation}: HTTP ${status} with an answer that is not JSON`, { cause });
    }
    if (status !== 200 || typeof answer?.statusCode !== 'string') {
      throw new OutcomeUnknown(`${operation}: HTTP ${status} without a status code`);
    }
    if (answer.statusCode !== SUCCESS) throw new Refused(answer.statusCode, answer.statusMsg ?? '');
    return answer;
  }
}

/** Return a time as the platform signs it: yyyyMMddHHmmss in China, which has no summer time. */
function timestamp(moment) {
  return new Date(moment.getTime() + 8 * HOUR).toISOString().replace(/\D/g, '').slice(0, 14);
}

function md5(text) {
  return createHash('md5').update(text).digest('hex').toUpperCase();
}
