//! What kernels cost beside plain verbs, in one run: get and traversal beside a READ, the checked
//! read beside a READ, streams beside a WRITE. The figures that count are those of
//! `remora bench`; this is for whoever works on the code.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora::kernel::KernelClient;
use remora::kernel::builtin::opcode;
use remora::nic::Access;
use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest, Status};
use remora::offload::kernel::builtin::column::Column;
use remora::offload::kernel::builtin::{consistency, filter, get, hyperloglog, shuffle, traversal};
use remora::{CompletionQueue, ConnectionParams, Device, QueuePair, QueuePairOptions};

const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let (server, client) = (Device::open()?, Device::open()?);
    let open = Access::all();
    let make = |device: &Device| -> Result<_, Box<dyn Error>> {
        let pd = device.alloc_pd()?;
        let (send_cq, recv_cq) = (device.create_cq(1024)?, device.create_cq(1024)?);
        let rc = QueuePairOptions::rc(&send_cq);
        let qp = pd.create_qp(&rc.recv_cq(&recv_cq).send_sges(2))?;
        let memory = pd.alloc(4 << 20, open)?;
        Ok((pd, send_cq, recv_cq, qp, memory))
    };
    let (_spd, _scq, _srcq, sqp, there) = make(&server)?;
    let (pd, cq, recv_cq, qp, here) = make(&client)?;
    let params = ConnectionParams { kernels: true, ..ConnectionParams::new(client.info().mtu) };
    qp.connect(sqp.local(), &params)?;
    sqp.connect(qp.local(), &params)?;
    server.deploy_builtin(&[there.grant_write()])?;
    let mut kernels = KernelClient::new(&pd, &qp, &recv_cq, 8, 1 << 21)?;

    // A list of 8, a table of one entry, an object.
    let base = there.addr();
    let put = |at: usize, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        there.write_at(at, &bytes)
    };
    for i in 0..8u64 {
        put(i as usize * 64, &[i, base + (i + 1) * 64, base + 4096])?;
    }
    let mut table = get::Table::new(1, 0);
    table.insert(5, get::Value { addr: base + 4096, len: 64 })?;
    there.write_at(8192, table.bytes())?;
    let sum = consistency::checksum(&[0; 4088]).to_le_bytes();
    there.write_at(16_384 + 4088, &sum)?;
    let list = traversal::Params::list(base, 7, 64).to_bytes();
    let entry = get::Params { table: base + 8192, key: 5, entry: 0, chain_max: 0 }.to_bytes();
    let object = consistency::Params { address: base + 16_384, len: 4096, readings: 0 }.to_bytes();

    // Whoever serves spins, as a card does.
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, spinning) = (stop.clone(), server.clone());
    let spinner = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            spinning.progress();
        }
    });

    let read = |len: u32| {
        let sge = [here.sge(0, len)];
        verb(&qp, &cq, SendOp::Read { from: there.remote(16_384) }, &sge)
    };
    let mut out = Vec::new();
    let mut call = |kernels: &mut KernelClient, opcode, params: &[u8]| {
        out.clear();
        kernels.call(opcode, params, &mut out).map(|_| ())
    };
    let n = 2000;
    compare(
        "get_64B",
        "READ of 64 B",
        n,
        &mut || Ok(call(&mut kernels, opcode::GET, &entry)?),
        &mut || read(64),
    )?;
    compare(
        "traversal_8",
        "READ of 64 B",
        n,
        &mut || Ok(call(&mut kernels, opcode::TRAVERSAL, &list)?),
        &mut || read(64),
    )?;
    compare(
        "consistency_4KiB",
        "READ of 4 KiB",
        n,
        &mut || Ok(call(&mut kernels, opcode::CONSISTENCY, &object)?),
        &mut || read(4096),
    )?;

    // Streams of 1 MiB.
    let values: Vec<u8> = (0..131_072u64)
        .flat_map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 3).to_le_bytes())
        .collect();
    here.write_at(1 << 20, &values)?;
    let stream = here.sge(1 << 20, 1 << 20);
    let write =
        || verb(&qp, &cq, SendOp::Write { to: there.remote(1 << 20), imm: None }, &[stream]);
    let mut with = |kernels: &mut KernelClient, opcode, params: &[u8]| {
        out.clear();
        kernels.call_with(opcode, params, stream, &mut out).map(|_| ())
    };
    let add = hyperloglog::Params { ask: hyperloglog::Ask::Add, precision: 0, store: 0 }.to_bytes();
    compare(
        "stream_hyperloglog",
        "WRITE of 1 MiB",
        40,
        &mut || Ok(with(&mut kernels, opcode::HYPERLOGLOG, &add)?),
        &mut || write(),
    )?;
    let filter = filter::Params {
        row_len: 8,
        column: Column::u64(0),
        compare: filter::Compare::Less,
        operand: 1 << 53,
        count_only: false,
    }
    .to_bytes();
    compare(
        "stream_filter (1/256 kept)",
        "WRITE of 1 MiB",
        40,
        &mut || Ok(with(&mut kernels, opcode::FILTER, &filter)?),
        &mut || write(),
    )?;
    let mut sizes = vec![0u64; 256];
    values.chunks_exact(8).for_each(|v| sizes[usize::from(v[0])] += 1);
    let histogram = shuffle::Partition::histogram(base + (2 << 20), &sizes);
    here.write_at(0, &histogram)?;
    let histogram = here.sge(0, histogram.len() as u32);
    let ask = |ask| shuffle::Params { ask, bits: 8, session: 0 }.to_bytes();
    let mut sink = Vec::new();
    compare(
        "stream_shuffle (256)",
        "WRITE of 1 MiB",
        40,
        &mut || {
            sink.clear();
            kernels.call_with(
                opcode::SHUFFLE,
                &ask(shuffle::Ask::Histogram),
                histogram,
                &mut sink,
            )?;
            Ok(kernels
                .call_with(opcode::SHUFFLE, &ask(shuffle::Ask::Values), stream, &mut sink)
                .map(|_| ())?)
        },
        &mut || write(),
    )?;
    stop.store(true, Ordering::Relaxed);
    spinner.join().ok();
    Ok(())
}

type Step<'a> = &'a mut dyn FnMut() -> Result<(), Box<dyn Error>>;

/// Runs both in turns, `n` times each a round; prints the median of each and of their ratio.
fn compare(
    name: &str,
    peer: &str,
    n: usize,
    ours: Step<'_>,
    theirs: Step<'_>,
) -> Result<(), Box<dyn Error>> {
    let time = |step: &mut dyn FnMut() -> Result<(), Box<dyn Error>>| {
        let start = Instant::now();
        for _ in 0..n {
            step()?;
        }
        Ok::<_, Box<dyn Error>>(start.elapsed().as_nanos() as f64 / n as f64)
    };
    time(ours)?;
    let mut rows = Vec::new();
    for _ in 0..ROUNDS {
        let (a, b) = (time(ours)?, time(theirs)?);
        rows.push((a / b, a, b));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, a, b) = rows[ROUNDS / 2];
    let (low, high) = (rows[ROUNDS / 4].0, rows[ROUNDS * 3 / 4].0);
    println!("{name:28} {a:10.0} ns   {peer} {b:10.0} ns   x {ratio:.2} ({low:.2} to {high:.2})");
    Ok(())
}

fn verb(
    qp: &QueuePair,
    cq: &CompletionQueue,
    op: SendOp,
    sges: &[remora::nic::queue::Sge],
) -> Result<(), Box<dyn Error>> {
    let flags = SendFlags::SIGNALED;
    qp.post_send(&SendRequest { wr_id: 0, op, data: Data::Sges(sges), flags })?;
    let done = cq.spin(Duration::from_secs(10))?;
    if done.status == Status::Success { Ok(()) } else { Err(done.status.into()) }
}
