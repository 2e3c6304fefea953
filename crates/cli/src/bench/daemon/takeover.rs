//! A process that serves by a chain is killed, and another takes its session over, while a client
//! gets values without a pause. No get may fail.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use remora::chain::AsyncChainClient;
use remora::daemon::Observer;
use remora::message::{Object, SessionStatus};
use remora::offload::chain::offload::list;
use remora::{Device, DeviceOptions};

use super::super::daemon_process::Daemon;
use super::super::row::{Case, Row, Target};
use super::holder::{self, Serving, Taken};
use super::served::attached;
use super::{PATIENCE, Wanted, again};
use crate::child::Helper;
use crate::thread::spawn_scoped;

const NAME: &str = "takeover_ms";
/// Gets before the process is killed, and behind the change of hands.
const GETS: u64 = 50;

/// The row of this file, if it is wanted.
pub(super) fn rows(wanted: &Wanted<'_>) -> Result<Vec<Row>> {
    if !wanted.any(&[NAME]) {
        return Ok(Vec::new());
    }
    let daemon = Daemon::start(None, "auto")?;
    let socket = daemon.socket();
    wanted.measure([Case {
        name: NAME,
        unit: "ms",
        peer: "by a process that is started then",
        target: Target::Within(5.0),
        ours: again(|| takeover_ms(&socket, Successor::StandsBy)),
        theirs: again(|| takeover_ms(&socket, Successor::Starts)),
    }])
}

/// The process that takes the session over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Successor {
    /// It runs already.
    StandsBy,
    /// It is started when the other has been killed.
    Starts,
}

/// Milliseconds from the signal that kills the holder to the word of its successor that it has the
/// session.
fn takeover_ms(socket: &Path, successor: Successor) -> Result<f64> {
    let observer = Observer::connect(Some(socket))?;
    // Those of a run that was disturbed are kept, too.
    for left in observer.status()?.sessions {
        observer.evict(&left.name)?;
    }
    let start = || Helper::start_with(&attached(socket), ["bench", "holder", "--successor"]);
    let mut standby = match successor {
        Successor::StandsBy => Some(ready(start()?)?),
        Successor::Starts => None,
    };
    let mut holder = Helper::start_with(&attached(socket), ["bench", "holder"])?;
    let serving: Serving = holder::told(&holder.line_within(PATIENCE)?)?;
    let device = DeviceOptions::new().embedded().open()?;
    let mut client = client(&device, &serving, &mut holder)?;
    let before = session(&observer)?;

    let (gets, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let took = thread::scope(|scope| {
        let get = || get_until(&mut client, serving.at, &gets, &stop);
        let getting = spawn_scoped(scope, "gets", get)?;
        let took = more_gets(&gets, &getting).and_then(|()| {
            let start_of_it = Instant::now();
            holder.kill()?;
            let mut next = match standby.take() {
                Some(standby) => standby,
                None => ready(start()?)?,
            };
            next.tell(&serving.ticket)?;
            let taken: Taken = holder::told(&next.line_within(PATIENCE)?)?;
            let took = start_of_it.elapsed();
            ensure_all(&taken, &before)?;
            more_gets(&gets, &getting)?;
            Ok(took)
        });
        stop.store(true, Ordering::Relaxed);
        getting.join().ok().context("a thread panicked")?.context("a get failed")?;
        took
    })?;
    Ok(took.as_secs_f64() * 1e3)
}

/// Waits until a successor waits for a ticket.
fn ready(mut successor: Helper) -> Result<Helper> {
    let line = successor.line_within(PATIENCE)?;
    ensure!(line == holder::READY, "the successor says `{line}`");
    Ok(successor)
}

/// The client of the holder's chain.
fn client(device: &Device, serving: &Serving, holder: &mut Helper) -> Result<AsyncChainClient> {
    let client = AsyncChainClient::new(&device.alloc_pd()?, 64)?;
    client.connect(serving.peer()?, device.info().mtu)?;
    holder.tell(&holder::written(client.local()))?;
    let line = holder.line_within(PATIENCE)?;
    ensure!(line == holder::SERVES, "the holder says `{line}`");
    Ok(client)
}

/// The only session.
fn session(observer: &Observer) -> Result<SessionStatus> {
    let mut sessions = observer.status()?.sessions;
    ensure!(sessions.len() == 1, "there are {} sessions", sessions.len());
    sessions.pop().context("there is no session")
}

/// Gets the value of the list again and again.
fn get_until(
    client: &mut AsyncChainClient,
    at: u64,
    gets: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let value = client.call(&list::message(holder::KEY, at)).wait(PATIENCE)?;
        ensure!(value == holder::VALUE, "a get has brought {value:?}");
        gets.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Waits for some more gets, unless one has failed.
fn more_gets<R>(gets: &AtomicU64, getting: &thread::ScopedJoinHandle<'_, R>) -> Result<()> {
    let before = gets.load(Ordering::Relaxed);
    while gets.load(Ordering::Relaxed) < before + GETS {
        ensure!(!getting.is_finished(), "no more values come");
        thread::yield_now();
    }
    Ok(())
}

/// Has the successor all that the session had?
fn ensure_all(taken: &Taken, before: &SessionStatus) -> Result<()> {
    let had = Taken {
        queue_pairs: before.queue_pairs,
        completion_queues: before.completion_queues,
        regions: before.regions,
    };
    ensure!(*taken == had, "the session had {had:?}, and its successor got {taken:?}");
    Ok(())
}

impl Taken {
    /// What these objects are.
    pub(super) fn of(objects: &[Object]) -> Taken {
        let count = |is: fn(&Object) -> bool| objects.iter().filter(|o| is(o)).count() as u32;
        Taken {
            queue_pairs: count(|object| matches!(object, Object::Qp(_) | Object::Srq(_))),
            completion_queues: count(|object| matches!(object, Object::Cq(_))),
            regions: count(|object| matches!(object, Object::Mr(_) | Object::Mw(_))),
        }
    }
}
