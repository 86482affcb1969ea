CREATE TABLE `jobs` (
    `id` bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `queue` varchar(255) NOT NULL,
    `payload` longtext NOT NULL,
    `attempts` smallint unsigned NOT NULL,
    `reserved_at` int unsigned,
    `available_at` int unsigned NOT NULL,
    `created_at` int unsigned NOT NULL,
    INDEX `jobs_queue_index` (`queue`)
) ENGINE=InnoDB
