// Runs Graphile Worker's own worker. Usage: graphile_worker.mjs install|work URL; work ends when standard input is closed.
import * as worker from 'graphile-worker'

const [command, url] = process.argv.slice(2)
if (command === 'install') {
  await worker.runMigrations({ connectionString: url })
} else {
  const runner = await worker.run({
    connectionString: url, concurrency: 5, pollInterval: 200, noHandleSignals: true,
    taskList: { mail: async (_payload, helpers) => {
      const id = helpers.job.id
      await helpers.query('INSERT INTO ran (job) VALUES ($1)', [id])
      if ((await helpers.query('DELETE FROM deadly WHERE job = $1 RETURNING 1', [id])).rows.length) process.kill(process.pid, 'SIGKILL')
      if ((await helpers.query('SELECT 1 FROM failing WHERE job = $1', [id])).rows.length) throw new Error('the card was declined')
    } }
  })
  process.stdin.resume()
  await new Promise(resolve => process.stdin.on('end', resolve))
  await runner.stop()
}
process.exit(0)
