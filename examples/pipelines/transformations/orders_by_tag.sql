CREATE MATERIALIZED VIEW orders_by_tag AS
SELECT tags, count(*) AS messages, max(storeTimestamp) AS latest
FROM orders
GROUP BY tags
