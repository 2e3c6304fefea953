//! Executors of a few lines that know nothing of the card: only the card wakes them.
#![allow(dead_code, reason = "each test program uses a part")]

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Polls a future when it is woken, and at no other time.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    work: Mutex<Option<Work>>,
    ready: Sender<Option<Arc<Task>>>,
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        let ready = self.ready.clone();
        ready.send(Some(self)).ok();
    }
}

/// Runs tasks to their ends in several threads, each of which may run any task.
pub(crate) fn run_all(tasks: Vec<Work>, threads: usize) {
    let (ready, queue) = channel::<Option<Arc<Task>>>();
    let (queue, left) = (Mutex::new(queue), AtomicUsize::new(tasks.len()));
    for work in tasks {
        let task = Task { work: Mutex::new(Some(work)), ready: ready.clone() };
        ready.send(Some(Arc::new(task))).unwrap();
    }
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| run_some(&queue, &ready, &left, threads));
        }
    });
}

fn run_some(
    queue: &Mutex<Receiver<Option<Arc<Task>>>>,
    ready: &Sender<Option<Arc<Task>>>,
    left: &AtomicUsize,
    threads: usize,
) {
    loop {
        let next = queue.lock().unwrap().recv().unwrap();
        let Some(task) = next else { return };
        let waker = Waker::from(task.clone());
        let mut work = task.work.lock().unwrap();
        let Some(running) = work.as_mut() else { continue };
        if running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            *work = None;
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                (0..threads).for_each(|_| ready.send(None).unwrap());
            }
        }
    }
}
