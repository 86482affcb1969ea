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
} else if (command === 'maintain') {
  await (boss.maintain ?? boss.supervise).call(boss)
} else {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  await boss.work('mail', { batchSize: 50, pollingIntervalSeconds: 0.5 }, async jobs => {
    for (const job of jobs) await pool.query('INSERT INTO ran (job) VALUES ($1)', [job.id])
  })
  process.stdin.resume()
  await new Promise(resolve => process.stdin.on('end', resolve))
  await pool.end()
}
await boss.stop({ graceful: false, wait: false, close: true })
process.exit(0)
