//! Thousands of connections at once.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use remora::nic::qp::Mtu;
use remora::{Connection, ConnectionParams, Device, Listener, ProtectionDomain, QueuePairOptions};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7575;
const STORM: usize = 5000;

/// Polls a task again when its own waker was called, and only then; counts the calls.
struct Task {
    number: usize,
    ready: std::sync::mpsc::Sender<usize>,
    wakes: Arc<AtomicUsize>,
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.ready.send(self.number).ok();
    }
}

type Connecting = Pin<Box<dyn Future<Output = Connection>>>;

/// Runs all to their ends; returns the results and how often tasks were woken.
fn run_all(futures: Vec<Connecting>) -> (Vec<Connection>, usize) {
    let (ready, due) = std::sync::mpsc::channel();
    let wakes = Arc::new(AtomicUsize::new(0));
    let waker =
        |number| Waker::from(Arc::new(Task { number, ready: ready.clone(), wakes: wakes.clone() }));
    let mut tasks: Vec<_> = (0..).map(waker).zip(futures.into_iter().map(Some)).collect();
    (0..tasks.len()).for_each(|number| ready.send(number).unwrap());
    let mut made = Vec::new();
    while made.len() < tasks.len() {
        let number = due.recv_timeout(PATIENCE).expect("a connection is made or fails");
        let (waker, future) = &mut tasks[number];
        let Some(running) = future else { continue };
        if let Poll::Ready(done) = running.as_mut().poll(&mut Context::from_waker(waker)) {
            made.push(done);
            *future = None;
        }
    }
    (made, wakes.load(Ordering::Relaxed))
}

fn small() -> QueuePairOptions<'static> {
    QueuePairOptions::new().send_depth(1).recv_depth(1)
}

fn accept_all(listener: &Listener, domain: &ProtectionDomain, mtu: Mtu) -> Vec<Connection> {
    let params = ConnectionParams::new(mtu);
    let accepted = (0..STORM).map(|_| {
        let request = listener.accept().wait(PATIENCE).unwrap();
        request.accept(domain.create_qp(&small()).unwrap(), b"", &params)
    });
    let futures = accepted.map(|accepting| {
        let future: Connecting = Box::pin(async { accepting.await.unwrap() });
        future
    });
    // Each is polled once at once: the answer leaves.
    run_all(futures.map(poll_once).collect()).0
}

fn poll_once(mut future: Connecting) -> Connecting {
    let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    match first {
        Poll::Ready(done) => Box::pin(std::future::ready(done)),
        Poll::Pending => future,
    }
}

#[test]
fn five_thousand_connections_at_once_are_all_made() {
    let [server, client] = [(); 2].map(|()| Device::open().unwrap());
    let to = SocketAddr::new(server.info().address, PORT);
    let listener = server.listen(PORT).unwrap();
    let mtu = server.info().mtu;
    let (asked, taken) = thread::scope(|scope| {
        let serving = scope.spawn(|| accept_all(&listener, &server.alloc_pd().unwrap(), mtu));
        let domain = client.alloc_pd().unwrap();
        let params = ConnectionParams::new(client.info().mtu);
        let futures = (0..STORM).map(|_| {
            let connecting = client.connect(domain.create_qp(&small()).unwrap(), to, b"", &params);
            let future: Connecting = Box::pin(async { connecting.await.unwrap() });
            future
        });
        let (made, wakes) = run_all(futures.collect());
        // A task is woken for its own connection, and not for each of the others'.
        assert!(wakes <= 4 * STORM, "{wakes}");
        (made, serving.join().unwrap())
    });
    assert_eq!((asked.len(), taken.len()), (STORM, STORM));
    let counters = server.counters().management;
    assert_eq!(counters.backlog_full, 0, "{counters:?}");
}
