//! How many appends a second the log takes from many clients that each wait for the disk, and what
//! one costs the processor.
//!
//! `cargo run --release -p remora-store --example log_append -- DIRECTORY [CLIENTS] [SECONDS]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_store::disk::Directory;
use remora_store::log::{
    CommitThread, Fields, Fsync, Log, Operation, Options, Parts, Position, open_log,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("which directory?")?;
    let clients = arguments.next().map_or(Ok(64), |clients| clients.parse())?;
    let seconds = arguments.next().map_or(Ok(3), |seconds| seconds.parse())?;
    for fsync in [Fsync::Always, Fsync::EverySecond] {
        let disk = Arc::new(Directory::open(Path::new(&directory))?);
        let options = Options { fsync, salt: 1, behind_bytes: 1 << 30, ..Options::default() };
        let log = Log::new(options);
        let (committer, _) =
            open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(()))?;
        let thread = CommitThread::start(committer)?;
        let waits = fsync == Fsync::Always;
        let clients = if waits { clients } else { 1 };
        run(&log, clients, Duration::from_secs(seconds), waits);
        thread.close()?;
    }
    Ok(())
}

fn run(log: &Log, clients: usize, time: Duration, waits: bool) {
    let fields = Fields {
        operation: Operation::Put,
        key: b"key:000000000001",
        value: &[b'x'; 64],
        ..Fields::synced()
    };
    let before = log.stats();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while began.elapsed() < time {
                    // Without waiting the clock would be most of the work.
                    for _ in 0..if waits { 1 } else { 1000 } {
                        let position = log.append(&fields).expect("the log takes it");
                        if waits {
                            log.wait(position).expect("the disk takes it");
                        }
                    }
                }
            });
        }
    });
    let took = began.elapsed().as_secs_f64();
    let stats = log.stats();
    let records = stats.records - before.records;
    let syncs = (stats.syncs - before.syncs).max(1);
    println!(
        "fsync {}: {clients} clients, {:.0} appends/s, {:.1} records a sync, {:.0} syncs/s, \
         {:.0} ns an append",
        log.options().fsync,
        records as f64 / took,
        records as f64 / syncs as f64,
        syncs as f64 / took,
        took * 1e9 / records as f64,
    );
}
