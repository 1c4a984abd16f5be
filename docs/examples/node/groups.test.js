// node --test (Node.js 18 or later) starts `rbim emulator`, which must be in PATH. With RBIM_BASE_URL, RBIM_APP_ID and RBIM_APP_TOKEN
// the tests use, and reset, one that runs: it needs --emulated-clock and, on another machine, --remote-copies and --sign-copies.
// The client has the default dialect.

import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { createServer } from 'node:http';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';

import { whyRefused } from './callback.js';
import { GroupClient, NotSent, OutcomeUnknown, Refused, Throttled } from './client.js';
import { Emulator } from './emulator.js';

const VIP = '4';

/** The name under which the emulator reaches this machine, if it runs on another one. */
const { RECEIVER_HOST } = process.env;

let emulator;
let waits;

before(async () => {
  emulator = await Emulator.start();
});
after(() => emulator?.stop());
beforeEach(async () => {
  await emulator.reset();
  waits = [];
});

function client(options = {}) {
  return new GroupClient({
    baseUrl: emulator.url,
    appId: emulator.appId,
    appToken: emulator.appToken,
    userName: 'admin',
    now: emulator.now,
    wait: async (milliseconds) => waits.push(milliseconds),
    ...options,
  });
}

async function groups() {
  return (await emulator.ask('GET', 'state')).groups;
}

/** Return the accounts of a group, sorted: JavaScript puts keys that are numbers first. */
function members(group) {
  return Object.keys(group.members).sort();
}

async function requests(operation) {
  return (await emulator.ask('GET', 'requests')).filter((request) => request.operation === operation);
}

describe('groups', () => {
  it('are created, and accounts join them', async () => {
    const id = await client().createGroup({ name: '产品公告', type: VIP });
    assert.deepEqual(await client().invite(id, ['1001', '1002']), []);
    const [group] = await groups();
    assert.deepEqual([group.group_id, group.name], [id, '产品公告']);
    assert.deepEqual(members(group), ['1001', '1002', 'admin']);
  });

  it('tell the code and the reason of a refusal, which is not repeated', async () => {
    await assert.rejects(client().invite('g80000000000000', ['1001']), { constructor: Refused, message: /no group/ });
    assert.equal((await requests('InviteJoinGroup')).length, 1);
  });
});

describe('a request is repeated', () => {
  it('after HTTP 429, as late as the platform asks for, also if it creates something', async () => {
    await emulator.faults({ effect: { kind: 'status', status: 429, retry_after: 7 }, nth: [1] });
    await client().createGroup({ name: 'News', type: VIP });
    assert.deepEqual([waits, (await groups()).length], [[7000], 1]);
  });

  it('if nothing was sent', async () => {
    const closed = createServer().listen(0, '127.0.0.1');
    await once(closed, 'listening');
    const { port } = closed.address();
    closed.close();
    const lost = client({ baseUrl: `http://127.0.0.1:${port}` });
    await assert.rejects(lost.createGroup({ name: 'News', type: VIP }), NotSent);
    assert.equal(waits.length, 2);
  });

  for (const kind of ['reset_before', 'reset_after', 'cut_short', 'invalid_json']) {
    it(`after ${kind} only if it is idempotent`, async () => {
      const id = await client().createGroup({ name: 'News', type: VIP });
      await emulator.faults({ effect: { kind }, operation: 'InviteJoinGroup', nth: [1] });
      await client().invite(id, ['1001']);
      assert.deepEqual(members((await groups())[0]), ['1001', 'admin']);
      assert.equal((await requests('InviteJoinGroup')).length, 2);

      await emulator.faults({ effect: { kind } });
      await assert.rejects(client().invite(id, ['1002'], { confirmation: true }), OutcomeUnknown);
      await assert.rejects(client().createGroup({ name: 'Other', type: VIP }), OutcomeUnknown);
      assert.equal((await requests('InviteJoinGroup')).length, 3);
      assert.equal((await groups()).length, kind === 'reset_before' ? 1 : 2);
    });
  }

  it('no more than three times', async () => {
    await emulator.faults({ effect: { kind: 'throttle', per_second: 0 } });
    await assert.rejects(client().createGroup({ name: 'News', type: VIP }), Throttled);
    assert.equal((await requests('CreateGroup')).length, 3);
  });
});

describe('a signature', () => {
  it('is refused a day later, and made anew by the time of the platform', async (t) => {
    if (!emulator.emulated) return t.skip('the emulator of RBIM_BASE_URL has no emulated clock');
    const stopped = emulator.now();
    await emulator.advance(25);
    await assert.rejects(client({ now: () => stopped }).createGroup({ name: 'News', type: VIP }), Refused);
    await client().createGroup({ name: 'News', type: VIP });
    assert.equal((await groups()).length, 1);
  });
});

describe('message copies', () => {
  let receiver;
  let received;

  beforeEach(async () => {
    received = new EventEmitter();
    receiver = createServer(async (request, response) => {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const body = Buffer.concat(chunks);
      const reason = whyRefused(request.headers, body, emulator, emulator.now());
      response.writeHead(reason ? 403 : 200).end();
      received.emit('copy', reason, reason ? undefined : JSON.parse(body));
    });
    receiver.listen(0, RECEIVER_HOST ? '0.0.0.0' : '127.0.0.1');
    await once(receiver, 'listening');
    await emulator.ask('PUT', 'copy', { url: `http://${RECEIVER_HOST ?? '127.0.0.1'}:${receiver.address().port}/` });
  });

  afterEach(async () => {
    await emulator.ask('DELETE', 'copy');
    receiver.close();
    receiver.closeAllConnections();
  });

  /** Let an account say something, and return what the receiver made of its copy. */
  async function say(text) {
    const copy = once(received, 'copy', { signal: AbortSignal.timeout(10_000) });
    await emulator.ask('POST', 'say', { sender: '1001', to: '1002', text });
    const [reason, message] = await copy;
    return { reason, message };
  }

  it('are verified by their signature', async () => {
    const { reason, message } = await say('你好');
    assert.deepEqual([reason, message.convType, message.body], [undefined, 'PERSON', '你好']);
  });

  for (const [effect, expected] of [
    [{ kind: 'tamper' }, /^MD5 is not that of the body$/],
    [{ kind: 'stale', seconds: 3600 }, /^it was signed 3[56]\d\d seconds ago$/],
    [{ kind: 'stale', seconds: -3600 }, /^it was signed -3[56]\d\d seconds ago$/],
  ]) {
    it(`are refused if they are not authentic: ${JSON.stringify(effect)}`, async () => {
      await emulator.ask('PUT', 'copy-faults', [{ effect }]);
      assert.match((await say('hello')).reason, expected);
    });
  }

  it('without the right CheckSum are refused', () => {
    const headers = { md5: '0'.repeat(32), curtime: '1'.repeat(13), checksum: '0'.repeat(32) };
    assert.match(whyRefused(headers, Buffer.from('{}'), emulator), /CheckSum/);
    assert.match(whyRefused({ ...headers, curtime: undefined }, Buffer.from('{}'), emulator), /missing/);
  });
});
