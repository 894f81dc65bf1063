CREATE TABLE purchases (user_id STRING, shop STRING, amount DECIMAL(10, 2), bought_at TIMESTAMP(3)) WITH ('connector' = 'filesystem', 'path' = 'file:///data/purchases', 'format' = 'json');

CREATE TABLE customers (user_id STRING NOT NULL, city STRING, PRIMARY KEY (user_id) NOT ENFORCED) WITH ('connector' = 'filesystem', 'path' = 'file:///data/customers', 'format' = 'json');

CREATE TABLE totals (user_id STRING, purchases BIGINT, total DECIMAL(38, 2), PRIMARY KEY (user_id) NOT ENFORCED) WITH ('connector' = 'print');

CREATE TABLE by_city (city STRING, amount DECIMAL(10, 2)) WITH ('connector' = 'print');

STATEMENT SET BEGIN
INSERT INTO totals SELECT user_id, COUNT(*) AS purchases, SUM(amount) AS total FROM purchases GROUP BY user_id;
INSERT INTO by_city SELECT c.city, p.amount FROM purchases p LEFT JOIN customers c ON p.user_id = c.user_id;
END
