# What the tests do with Sidekiq itself: sidekiq_app.rb COMMAND SOCKET DB …, one JSON answer on stdout. `serve` runs its own
# processor until standard input is closed.
require 'sidekiq'
require 'sidekiq/api'
require 'sidekiq/cli'
require 'json'

command, path, db, *rest = ARGV
Sidekiq.logger.level = Logger::FATAL
[:configure_server, :configure_client].each { |way| Sidekiq.send(way) { |config| config.redis = { path: path, db: db.to_i } } }

class MailJob
  include Sidekiq::Worker

  def perform(name)
    Sidekiq.redis do |redis|
      redis.rpush('test:executions', "#{name} #{Time.now.to_f}")
      raise IOError, "upstream said 503 for #{name}" if redis.exists?('test:broken') || redis.sismember('test:failing', name)
    end
  end
end

def sorted(set, state)
  set.map do |job|
    [job.jid, { state: state, type: job.klass, queue: job.queue, retry_count: job['retry_count'], error: job['error_class'] && "#{job['error_class']}: #{job['error_message']}",
                at: job.score, created: job['created_at'].to_f, limit: job['retry'] }]
  end
end

answer = case command
when 'add'
  prefix, number, options = rest
  number.to_i.times { |n| Sidekiq::Client.push({ 'class' => MailJob, 'args' => ["#{prefix}-#{n}"], 'jid' => "#{prefix}-#{n}" }.merge(JSON.parse(options))) }
when 'serve'
  Sidekiq.options[:queues] = ['default']
  Sidekiq.options[:concurrency] = 4
  Sidekiq.options[:poll_interval_average] = 0.5
  launcher = Sidekiq::Launcher.new(Sidekiq.options)
  launcher.run
  $stdout.puts 'true'
  $stdout.flush
  $stdin.read
  launcher.stop
when 'retryAll'
  clocks = [Process::CLOCK_MONOTONIC, Process::CLOCK_PROCESS_CPUTIME_ID]
  began = clocks.map { |clock| Process.clock_gettime(clock) }
  Sidekiq::DeadSet.new.retry_all
  clocks.zip(began).map { |clock, at| Process.clock_gettime(clock) - at }
when 'report'
  (sorted(Sidekiq::DeadSet.new, 'dead') + sorted(Sidekiq::RetrySet.new, 'retry') + sorted(Sidekiq::ScheduledSet.new, 'scheduled') +
    Sidekiq::Queue.new('default').map { |job| [job.jid, { state: 'queued', type: job.klass, queue: job.queue, retry_count: job['retry_count'], error: job['error_class'] && "#{job['error_class']}: #{job['error_message']}", at: nil, created: job['created_at'].to_f, limit: job['retry'] }] }).to_h
end
$stdout.puts JSON.generate(answer) unless command == 'serve'
