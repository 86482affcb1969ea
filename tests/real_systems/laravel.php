<?php
// Runs Laravel's own queue worker. Usage: laravel.php install|add|work pgsql|mysql SOCKET DATABASE [COUNT]; work ends when
// standard input is closed. Jobs have all kinds of limits: none, `tries` (0 is no limit) and `retryUntil`.
require_once 'Illuminate/Queue/autoload.php';
require_once 'Illuminate/Events/autoload.php';
require_once 'Illuminate/Bus/autoload.php';

use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Queue\Capsule\Manager as Queue;
use Illuminate\Queue\Events\JobFailed;
use Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

[, $command, $driver, $socket, $name] = $argv;

class Mail
{
    use Illuminate\Queue\InteractsWithQueue;

    public $tries, $retryUntil, $failing;

    public function __construct($tries, $retryUntil, $failing)
    {
        [$this->tries, $this->retryUntil, $this->failing] = [$tries, $retryUntil, $failing];
    }

    public function handle()
    {
        Database::table('ran')->insert(['job' => $this->job->getJobId()]);
        if ($this->failing) {
            throw new RuntimeException('the card was declined');
        }
    }
}

class Silent implements ExceptionHandler
{
    public function report(Throwable $e) {}
    public function shouldReport(Throwable $e) { return false; }
    public function render($request, Throwable $e) {}
    public function renderForConsole($output, Throwable $e) {}
}

$container = Container::getInstance();
$database = new Database($container);
$database->addConnection($driver === 'mysql'
    ? ['driver' => 'mysql', 'unix_socket' => $socket, 'database' => $name, 'username' => 'root', 'charset' => 'utf8mb4']
    : ['driver' => 'pgsql', 'host' => $socket, 'database' => $name, 'username' => 'postgres']);
$database->setAsGlobal();
$events = new Illuminate\Events\Dispatcher($container);
$container->instance('db', $database->getDatabaseManager());
$container->instance('events', $events);
$container->instance(Illuminate\Contracts\Events\Dispatcher::class, $events);
$container->instance(Illuminate\Contracts\Container\Container::class, $container);
$container->singleton(Illuminate\Contracts\Bus\Dispatcher::class, fn ($app) => new Illuminate\Bus\Dispatcher($app));
$queue = new Queue($container);
$queue->addConnection(['driver' => 'database', 'table' => 'jobs', 'connection' => 'default', 'queue' => 'default', 'retry_after' => 90]);

if ($command === 'add') {
    $now = time();
    for ($n = 0; $n < (int) $argv[5]; $n++) {
        $until = [null, null, $now + 86400 * 2, $now - 60, $now + 3600][intdiv($n, 4) % 5];
        $queue->getConnection('default')->push(new Mail([null, 1, 3, 0][$n % 4], $until, false));
    }
} else {
    $failed = new DatabaseUuidFailedJobProvider($container['db'], 'default', 'failed_jobs');
    $events->listen(JobFailed::class, function ($event) use ($failed) {
        $failed->log($event->connectionName, $event->job->getQueue(), $event->job->getRawBody(), $event->exception);
    });
    $worker = new Worker($queue->getQueueManager(), $events, new Silent(), fn () => false);
    $options = new WorkerOptions('default', 0, 1024, 60, 0.05, 1);
    stream_set_blocking(STDIN, false);
    while (!feof(STDIN)) {
        fread(STDIN, 1);
        $worker->runNextJob('default', 'default', $options);
    }
}
