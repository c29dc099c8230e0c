// Enqueues and drains with BullMQ on Node.js: node bullmq_node.cjs PORT one,bulk,drain SCALE, with NODE_PATH set.
const { Queue, Worker } = require('bullmq');
const { version } = require('bullmq/package.json');

const [port, measures, scale] = [Number(process.argv[2]), process.argv[3].split(','), Number(process.argv[4])];
const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null };
const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const job = (i) => ({ name: 'noop', data: { i, s: 'hello-world' }, opts: { removeOnComplete: true } });
const thousand = (first) => Array.from({ length: 1000 }, (_, k) => job(first + k));

async function rate(queue, step, size) {
  await queue.obliterate({ force: true });
  const began = seconds();
  let n = 0;
  for (; seconds() < began + 1.5 * scale; n += size) await step(n);
  return { jobs_per_s: Math.round(n / (seconds() - began)) };
}

async function drain(queue) {
  const n = Math.max(1000, Math.round((60 * scale)) * 1000);
  await queue.obliterate({ force: true });
  for (let i = 0; i < n; i += 1000) await queue.addBulk(thousand(i));
  const runs = new Uint8Array(n);
  let first = 0, done = 0;
  await new Promise((resolve) => {
    const worker = new Worker('bench', async ({ data }) => {
      first ||= seconds();
      runs[data.i] += 1;
      return data.i;
    }, { connection, concurrency: 100 });
    worker.on('completed', () => { if (++done === n) resolve(); });
  });
  const end = seconds();
  const ran = runs.filter((k) => k > 0).length;
  const twice = runs.filter((k) => k > 1).length;
  return { jobs_per_s: Math.round(n / (end - first)), n, ran, twice, lost: n - ran };
}

async function main() {
  const queue = new Queue('bench', { connection });
  const out = {
    about: {
      versions: { bullmq: version, node: process.versions.node },
      settings: 'one process that enqueues and drains, concurrency 100, removeOnComplete; addBulk of 1,000',
      reliability: 'lock per job, renewed; a stalled job runs again after 30 s',
      is_async: true, recovers: true, cleans_up: true,
    },
  };
  for (const name of measures) {
    if (name === 'one') out.one = await rate(queue, (n) => queue.add('noop', job(n).data, job(n).opts), 1);
    if (name === 'bulk') out.bulk = await rate(queue, (n) => queue.addBulk(thousand(n)), 1000);
    if (name === 'drain') out.drain = await drain(queue);
  }
  process.stdout.write(JSON.stringify(out), () => process.exit(0));
}

main();
