// Runs Graphile Worker's own worker. Usage: graphile_worker.mjs install|work URL; work ends when standard input is closed.
import worker from 'graphile-worker'

const [command, url] = process.argv.slice(2)
if (command === 'install') {
  await worker.runMigrations({ connectionString: url })
} else {
  const runner = await worker.run({
    connectionString: url, concurrency: 5, pollInterval: 200, noHandleSignals: true,
    taskList: { mail: async (_payload, helpers) => { await helpers.query('INSERT INTO ran (job) VALUES ($1)', [helpers.job.id]) } }
  })
  process.stdin.resume()
  await new Promise(resolve => process.stdin.on('end', resolve))
  await runner.stop()
}
process.exit(0)
