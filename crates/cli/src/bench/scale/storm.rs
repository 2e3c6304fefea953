//! A storm of connections: many set-ups begun at once, between two cards of this process.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use remora::nic::nic::StructureUse;
use remora::{
    ConnectFailure, Connection, ConnectionParams, DeviceOptions, DialectChoice, Listener,
    ProtectionDomain, QueuePair, QueuePairOptions,
};

use crate::thread::spawn_scoped;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 7575;

/// What a storm has led to.
pub(super) struct Storm {
    /// From the first request to the last established connection.
    pub(super) seconds: f64,
    /// What the card that has asked takes of memory then.
    pub(super) memory: Vec<StructureUse>,
}

/// Sets up `count` connections at once, of the dialect that both cards offer.
pub(super) fn run(count: usize, dialect: DialectChoice) -> Result<Storm> {
    let card = || DeviceOptions::new().embedded().dialect(dialect).open();
    let (server, client) = (card()?, card()?);
    let to = SocketAddr::new(server.info().address, PORT);
    let domain = client.alloc_pd()?;
    let params = ConnectionParams::new(client.info().mtu);
    let queue_pairs = make(&domain, count)?;
    let theirs = make(&server.alloc_pd()?, count)?;
    let listener = server.listen(PORT)?;
    thread::scope(|scope| {
        let begun = Instant::now();
        let accept = || accept_all(&listener, theirs, &params);
        let serving = spawn_scoped(scope, "server", accept)?;
        let connecting = queue_pairs.into_iter().map(|qp| {
            let future: Connecting = Box::pin(client.connect(qp, to, b"", &params));
            future
        });
        let made = run_all(connecting.collect())?;
        let served = serving.join().map_err(|_| anyhow!("the server has panicked"))??;
        let seconds = begun.elapsed().as_secs_f64();
        let memory = client.memory_use();
        drop((made, served));
        Ok(Storm { seconds, memory })
    })
}

type Connecting = Pin<Box<dyn Future<Output = Result<Connection, ConnectFailure>>>>;

fn small() -> QueuePairOptions<'static> {
    QueuePairOptions::new().send_depth(4).recv_depth(4)
}

fn make(domain: &ProtectionDomain, count: usize) -> Result<Vec<QueuePair>> {
    Ok((0..count).map(|_| domain.create_qp(&small())).collect::<Result<_, _>>()?)
}

fn accept_all(
    listener: &Listener,
    queue_pairs: Vec<QueuePair>,
    params: &ConnectionParams,
) -> Result<Vec<Connection>> {
    let mut tasks = Tasks::new();
    for qp in queue_pairs {
        let request = listener.accept().wait(PATIENCE)?;
        tasks.begin(Box::pin(request.accept(qp, b"", params)))?;
    }
    tasks.finish()
}

fn run_all(futures: Vec<Connecting>) -> Result<Vec<Connection>> {
    let mut tasks = Tasks::new();
    futures.into_iter().try_for_each(|future| tasks.begin(future))?;
    tasks.finish()
}

/// Futures, each of which is polled when its waker was called.
struct Tasks {
    running: Vec<(Waker, Option<Connecting>)>,
    made: Vec<Connection>,
    wake: Sender<usize>,
    woken: Receiver<usize>,
}

/// Puts its task among those that were woken.
struct Wakes(usize, Sender<usize>);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        // The tasks may be gone.
        self.1.send(self.0).ok();
    }
}

impl Tasks {
    fn new() -> Tasks {
        let (wake, woken) = channel();
        Tasks { running: Vec::new(), made: Vec::new(), wake, woken }
    }

    /// Begins a future: it is polled once.
    fn begin(&mut self, future: Connecting) -> Result<()> {
        let number = self.running.len();
        let waker = Waker::from(Arc::new(Wakes(number, self.wake.clone())));
        self.running.push((waker, Some(future)));
        self.poll(number)
    }

    fn poll(&mut self, number: usize) -> Result<()> {
        let (waker, future) = &mut self.running[number];
        let Some(running) = future else { return Ok(()) };
        if let Poll::Ready(done) = running.as_mut().poll(&mut TaskContext::from_waker(waker)) {
            *future = None;
            self.made.push(done?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Connection>> {
        while self.made.len() < self.running.len() {
            let number = self.woken.recv_timeout(PATIENCE).with_context(|| {
                let (made, all) = (self.made.len(), self.running.len());
                format!("{made} of {all} connections, and nothing happens for {PATIENCE:?}")
            })?;
            self.poll(number)?;
        }
        Ok(self.made)
    }
}
