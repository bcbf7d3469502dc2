// What one run cost, printed as the line of JSON that the bench program reads.
//
// Every program here is called as `node FILE CONTENDER ADDRESS`. How much it does is in the environment
// (`BENCH_EVENTS` and others), set by the bench program.

/** How much to do: the number in the environment variable BENCH_name. */
export function amount(name) {
  const number = Number(process.env[`BENCH_${name}`]);
  if (!(number > 0)) throw new Error(`BENCH_${name} must be a number above 0`);
  return number;
}

/** A stopwatch for one run of this process. */
export class Meter {
  #singles = [];

  constructor() {
    this.start();
  }

  /** Starts it, again if it runs. */
  start() {
    this.#singles.length = 0;
    this.switches = process.resourceUsage().voluntaryContextSwitches;
    this.cpu = process.cpuUsage();
    this.wall = performance.now();
  }

  /** Notes the time of one thing that began at `since` (`performance.now()`). */
  single(since) {
    this.#singles.push(performance.now() - since);
  }

  /** Stops it after so many things and prints what they cost. */
  report(things) {
    const seconds = (performance.now() - this.wall) / 1e3;
    const { user, system } = process.cpuUsage(this.cpu);
    const switches = process.resourceUsage().voluntaryContextSwitches - this.switches;
    const singles = this.#singles.toSorted((a, b) => a - b);
    const figures = {
      rate: things / seconds,
      p50_us: singles.length ? singles[singles.length >> 1] * 1e3 : null,
      switches: (switches * 1e3) / things,
      cpu_us: (user + system) / things,
    };
    console.log(JSON.stringify(figures));
  }
}
