import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

/** An emulator of the platform, and its control interface. */
export class Emulator {
  #process;
  #stopped;

  constructor(variables, process) {
    this.url = variables.RBIM_BASE_URL;
    this.appId = variables.RBIM_APP_ID;
    this.appToken = variables.RBIM_APP_TOKEN;
    this.#process = process;
  }

  /** Use the emulator of RBIM_BASE_URL, such as the container beside these tests, or start one. */
  static async start() {
    const emulator = process.env.RBIM_BASE_URL ? new Emulator(process.env) : await Emulator.#run();
    await emulator.#readClock('GET', 'clock');
    return emulator;
  }

  static async #run() {
    const child = spawn('rbim', ['emulator', '--port', '0', '--emulated-clock', '--quiet'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const failed = new Promise((_, reject) => {
      child.once('error', reject);
      child.once('exit', (code) => reject(new Error(`rbim emulator ended with exit code ${code}`)));
    });
    failed.catch(() => {}); // later, its end is no error
    const variables = {};
    const lines = createInterface({ input: child.stdout });
    const read = async () => {
      for await (const line of lines) {
        const [, name, value] = line.match(/^export (\w+)=(.*)$/) ?? [];
        if (name) variables[name] = value;
        if (name === 'RBIM_EMULATOR_URL') return; // the last one
      }
    };
    await Promise.race([read(), failed]);
    return new Emulator(variables, child);
  }

  /** Send a command: GET /_emulator/state is `ask('GET', 'state')`. */
  async ask(method, path, body) {
    const response = await fetch(`${this.url}/_emulator/${path}`, {
      method,
      headers: { 'Content-Type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${answer.error}`);
    return answer;
  }

  /** Let the next requests fail. The kinds of faults are in the emulator's documentation. */
  async faults(...faults) {
    await this.ask('PUT', 'faults', faults);
  }

  async advance(hours) {
    await this.#readClock('POST', 'clock/advance', { hours });
  }

  /** Whether its clock stands still until it is advanced. */
  get emulated() {
    return this.#stopped !== undefined;
  }

  /** The emulator's time. */
  now = () => this.#stopped ?? new Date();

  async #readClock(method, path, body) {
    const { now, emulated } = await this.ask(method, path, body);
    if (emulated) this.#stopped = new Date(now);
  }

  async reset() {
    await this.ask('POST', 'reset');
  }

  async stop() {
    if (!this.#process || this.#process.exitCode !== null) return;
    const ended = new Promise((resolve) => this.#process.once('exit', resolve));
    this.#process.kill();
    await ended;
  }
}
