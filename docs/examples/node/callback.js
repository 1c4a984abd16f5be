import { createHash, timingSafeEqual } from 'node:crypto';

const MINUTE = 60_000;
const DIGEST = /^[0-9a-f]{32}$/i;
const MILLISECONDS = /^[0-9]{13}$/;

/**
 * Return why a message copy is not authentic, or undefined if it is.
 *
 * The platform signs with three headers: MD5 of the raw body, CurTime in milliseconds, and CheckSum, the MD5 of
 * application id, token, the text of MD5 and that of CurTime. MD5 must be compared with the body, too: otherwise one
 * captured delivery would authenticate every other body.
 *
 * @param {import('node:http').IncomingHttpHeaders} headers
 * @param {Buffer} body the bytes as they came, before any parser
 * @param {{ appId: string, appToken: string }} credentials
 * @param {Date} [now]
 * @returns {string | undefined}
 */
export function whyRefused(headers, body, { appId, appToken }, now = new Date()) {
  const { md5: digest, curtime, checksum } = headers;
  if (!DIGEST.test(digest ?? '') || !DIGEST.test(checksum ?? '') || !MILLISECONDS.test(curtime ?? '')) {
    return 'a header of the signature is missing, or has another form';
  }
  if (!same(checksum, md5(`${appId}${appToken}${digest}${curtime}`))) return 'CheckSum is not that of this application';
  if (!same(digest, md5(body))) return 'MD5 is not that of the body';
  const age = now.getTime() - Number(curtime);
  if (age > 5 * MINUTE || age < -MINUTE) return `it was signed ${Math.round(age / 1000)} seconds ago`;
  return undefined;
}

function md5(data) {
  return createHash('md5').update(data).digest('hex');
}

function same(left, right) {
  return timingSafeEqual(Buffer.from(left.toLowerCase()), Buffer.from(right.toLowerCase()));
}
