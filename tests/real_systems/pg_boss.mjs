// Runs pg-boss' own worker. Usage: pg_boss.mjs install|work|maintain URL; work ends when standard input is closed.
import * as module from 'pg-boss'
import pg from 'pg'

const PgBoss = module.PgBoss ?? module.default
const [command, url] = process.argv.slice(2)
const boss = new PgBoss({ connectionString: url, maintenanceIntervalSeconds: 1, superviseIntervalSeconds: 1 })
boss.on('error', error => console.error(error))
await boss.start()
if (command === 'install') {
  await boss.createQueue('dead')
  await boss.createQueue('mail', { deadLetter: 'dead' })
  await boss.createQueue('strict', { policy: 'key_strict_fifo' })
} else if (command === 'maintain') {
  await (boss.maintain ?? boss.supervise).call(boss)
} else {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  const failing = new Set((await pool.query('SELECT job FROM failing')).rows.map(row => row.job))
  const handle = async jobs => {
    for (const job of jobs) {
      await pool.query('INSERT INTO ran (job) VALUES ($1)', [job.id])
      if ((await pool.query('DELETE FROM deadly WHERE job = $1 RETURNING 1', [job.id])).rows.length) process.kill(process.pid, 'SIGKILL')
      if (failing.has(job.id)) throw new Error('the card was declined')
    }
  }
  const deadly = (await pool.query('SELECT 1 FROM deadly')).rows.length
  // A handler that throws fails its whole batch, so jobs are then taken one by one, by more workers.
  const [workers, batchSize] = failing.size ? [deadly ? 10 : 40, 1] : [1, 50]
  for (const name of ['mail', 'strict']) {
    for (let n = 0; n < workers; n++) await boss.work(name, { batchSize, pollingIntervalSeconds: 0.5 }, handle)
  }
  process.stdin.resume()
  await new Promise(resolve => process.stdin.on('end', resolve))
  await pool.end()
}
await boss.stop({ graceful: false, wait: false, close: true })
process.exit(0)
