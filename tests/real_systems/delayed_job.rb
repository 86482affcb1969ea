# Runs delayed_job's own worker. Usage: delayed_job.rb install|work mysql2|postgresql SOCKET DATABASE; work ends when
# standard input is closed.
require 'active_record'
require 'delayed_job_active_record'
require 'erb'

command, adapter, socket, database = ARGV
where = adapter == 'mysql2' ? { socket: socket, username: 'root' } : { host: socket, username: 'postgres' }
ActiveRecord::Base.establish_connection({ adapter: adapter, database: database, pool: 5 }.merge(where))
ActiveRecord::Base.default_timezone = :utc

class Mail < Struct.new(:number)
  def before(job)
    @id = job.id
  end

  def perform
    connection = ActiveRecord::Base.connection
    connection.execute("INSERT INTO ran (job) VALUES ('#{@id.to_i}')")
    deadly = "FROM deadly WHERE job = '#{@id.to_i}'"
    if connection.select_value("SELECT 1 #{deadly}")
      connection.execute("DELETE #{deadly}")
      Process.kill(:KILL, Process.pid)
    end
    raise 'the card was declined' if connection.select_value("SELECT 1 FROM failing WHERE job = '#{@id.to_i}'")
  end
end

if command == 'install'
  place = Gem.loaded_specs['delayed_job_active_record'].full_require_paths.map { |path| "#{path}/generators/delayed_job/templates/migration.rb" }
  template = place.find { |path| File.exist?(path) } || Dir.glob("#{ENV.fetch('ROOT')}/**/delayed_job/templates/migration.rb").first
  migration_version = '[6.1]'
  eval(ERB.new(File.read(template)).result(binding))
  ActiveRecord::Migration.verbose = false
  CreateDelayedJobs.migrate(:up)
else
  Delayed::Worker.destroy_failed_jobs = false
  worker = Delayed::Worker.new(quiet: true)
  stop = false
  Thread.new { STDIN.read; stop = true }
  until stop
    done = worker.work_off(100).sum
    sleep 0.1 if done.zero?
  end
end
