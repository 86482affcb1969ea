// What the tests do with BullMQ's own library: node bullmq_app.mjs COMMAND SOCKET DB …, one JSON answer on stdout.
import { createRequire } from "node:module";

const require = createRequire(process.env.BULLMQ_HOME + "/");
const { Queue, Worker, UnrecoverableError } = require("bullmq");
const IORedis = require("ioredis");
const [command, path, db, ...rest] = process.argv.slice(2);
const connection = new IORedis({ path, db: Number(db), maxRetriesPerRequest: null });
const name = "mail";
const queue = new Queue(name, { connection });
const answer = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const broken = () => connection.exists("test:broken");

const work = async (job) => {
  await connection.rpush("test:executions", `${job.name} ${Date.now()}`);
  if (Math.random() < Number(process.env.FAILS ?? 0)) throw new Error("upstream timed out");
  if (await broken()) throw job.name.startsWith("hopeless") ? new UnrecoverableError("bad payload") : new Error(`upstream said 503 for ${job.name}`);
  return job.name;
};

// As rq_app.py decides; a job kills its worker only once.
const decide = async (job) => {
  const number = Number(job.name.slice(1));
  const kind = ["done", "done", "done", "done", "timeout", "declined", "timeout"][number % 7];
  const dies = number % 30 === 15 && (await connection.setnx(`test:died:${job.name}`, 1)) === 1;
  await connection.rpush("test:outcomes", `${job.name} ${dies ? "died" : kind}`);
  if (dies) process.kill(process.pid, "SIGKILL");
  if (kind !== "done") throw new Error(kind === "timeout" ? "upstream timed out" : "the card was declined");
};

async function drained(worker, total) {
  for (;;) {
    const counts = await queue.getJobCounts("wait", "active", "prioritized", "paused");
    if (Object.values(counts).every((count) => count === 0)) break;
    await new Promise((done) => setTimeout(done, 20));
  }
  await worker.close();
}

switch (command) {
  case "add": {
    const [prefix, number, options] = rest;
    const jobs = Array.from({ length: Number(number) }, (_, n) => ({ name: `${prefix}-${n}`, data: { secret: n }, opts: { jobId: `${prefix}-${n}`, ...JSON.parse(options) } }));
    await queue.addBulk(jobs);
    answer(jobs.length);
    break;
  }
  case "work": {
    await drained(new Worker(name, work, { connection, concurrency: 8 }));
    answer(true);
    break;
  }
  case "decide": {
    const quick = { lockDuration: 1000, stalledInterval: 500, maxStalledCount: 1000 };
    await drained(new Worker(name, decide, { connection, concurrency: 4, ...quick }));
    answer(true);
    break;
  }
  case "serve": {
    const worker = new Worker(name, work, { connection, concurrency: 4 });
    answer(true);
    await new Promise((done) => process.stdin.on("end", done).resume());
    await worker.close();
    process.exit(0);
  }
  case "pause": await queue.pause(); answer(true); break;
  case "resume": await queue.resume(); answer(true); break;
  case "report": {
    const states = ["completed", "failed", "delayed", "active", "waiting", "prioritized", "waiting-children", "paused"];
    const found = {};
    for (const job of await queue.getJobs(states, 0, -1)) {
      found[job.id] = { state: await job.getState(), name: job.name, attemptsMade: job.attemptsMade, attempts: job.opts.attempts ?? 1,
        failedReason: job.failedReason ?? null, timestamp: job.timestamp, processedOn: job.processedOn ?? null,
        finishedOn: job.finishedOn ?? null, delay: job.delay };
    }
    answer(found);
    break;
  }
  case "retryAll": {
    const began = process.hrtime.bigint(), used = process.cpuUsage();
    await queue.retryJobs({ count: 1000 });
    const { user, system } = process.cpuUsage(used);
    answer([Number(process.hrtime.bigint() - began) / 1e9, (user + system) / 1e6]);
    break;
  }
}
await queue.close();
connection.disconnect();
