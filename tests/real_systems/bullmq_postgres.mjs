// Runs BullMQ's own worker on PostgreSQL. Usage: bullmq_postgres.mjs install|add|work|report URL; work ends when its
// standard input is closed. Half of the jobs that `add` makes have failed, some wait for a retry, and some are new.
import { createPostgresBackend, Queue, runMigrations, Worker } from 'bullmq'
import pg from 'pg'

const [command, url, number] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: url })
const options = { connection: { connectionString: url } }
const open = () => new Queue('mail', options, createPostgresBackend)

async function done (worker, queue) {
  for (;;) {
    const counts = await queue.getJobCounts('waiting', 'active', 'prioritized')
    if (Object.values(counts).every((count) => count === 0)) break
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  await worker.close()
}

switch (command) {
  case 'install': {
    const client = await pool.connect()
    await client.query('CREATE SCHEMA IF NOT EXISTS bullmq')
    await client.query('SET search_path TO bullmq')
    await runMigrations(client)
    client.release()
    break
  }
  case 'add': {
    const queue = open()
    const jobs = Array.from({ length: Number(number) }, (_, n) => ({
      name: 'mail',
      data: { n },
      opts: {
        jobId: `job ${n}`,
        attempts: n % 4 === 1 ? 3 : 1,
        backoff: n % 4 === 1 ? { type: 'fixed', delay: 86_400_000 } : undefined,
        removeOnFail: n % 4 === 0 ? { age: 3600 } : undefined
      }
    }))
    await queue.addBulk(jobs.filter((_, n) => n % 4 !== 3))
    const failing = new Worker('mail', async (job) => { throw new Error(`upstream said 503 for ${job.id}`) }, { ...options, concurrency: 8 }, createPostgresBackend)
    await done(failing, queue)
    await queue.addBulk(jobs.filter((_, n) => n % 8 === 3))
    await queue.addBulk(jobs.filter((_, n) => n % 8 === 7).map((job) => ({ ...job, opts: { ...job.opts, delay: 86_400_000 } })))
    await queue.close()
    break
  }
  case 'work': {
    const worker = new Worker('mail', async (job) => {
      await pool.query('INSERT INTO public.ran (job) VALUES ($1)', [job.id])
      if ((await pool.query('DELETE FROM public.deadly WHERE job = $1 RETURNING 1', [job.id])).rows.length) process.kill(process.pid, 'SIGKILL')
      if ((await pool.query('SELECT 1 FROM public.failing WHERE job = $1', [job.id])).rows.length) throw new Error('the card was declined')
    }, { ...options, concurrency: 4 }, createPostgresBackend)
    await new Promise((resolve) => process.stdin.on('end', resolve).resume())
    await worker.close()
    break
  }
  case 'report': {
    const queue = open()
    const states = ['completed', 'failed', 'delayed', 'active', 'waiting', 'prioritized', 'waiting-children', 'paused']
    const found = {}
    for (const job of await queue.getJobs(states, 0, -1)) {
      found[job.id] = { state: await job.getState(), name: job.name, attemptsMade: job.attemptsMade, attempts: job.opts.attempts ?? 1, failedReason: job.failedReason ?? null, timestamp: job.timestamp, processedOn: job.processedOn ?? null }
    }
    await new Promise((resolve) => process.stdout.write(JSON.stringify(found), resolve)) // a pipe takes 64 kB at once
    await queue.close()
    break
  }
}
await pool.end()
process.exit(0)
