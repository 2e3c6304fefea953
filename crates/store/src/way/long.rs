//! Long calls: to carry one out takes so long that others would wait for the card meanwhile. So a
//! thread does it, and the kernel waits for the thread.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::kernel::{CallStatus, Context};
use remora::threads::without_signals;

use super::payload::PayloadRoom;

/// How long a kernel waits before it looks again whether its call is done.
const LOOK: Duration = Duration::from_micros(50);

type Work = Box<dyn FnOnce() + Send>;

/// Who carries out long calls.
#[derive(Debug)]
enum Worker {
    Thread(Sender<Work>),
    Caller,
    Nobody,
}

/// A thread for long calls, and room for their bytes.
#[derive(Debug)]
pub struct LongCalls {
    pub(super) room: Arc<PayloadRoom>,
    worker: Mutex<Worker>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LongCalls {
    /// Starts the thread. The bytes of all calls may take `room` bytes together.
    ///
    /// # Errors
    /// What the system says if it has no thread to give.
    pub fn start(room: u64) -> io::Result<LongCalls> {
        let (work, waiting) = mpsc::channel::<Work>();
        let named = thread::Builder::new().name("store long".to_owned());
        let carry_out = move || waiting.into_iter().for_each(|work| work());
        let thread = Mutex::new(Some(without_signals(|| named.spawn(carry_out))?));
        let room = Arc::new(PayloadRoom::new(room));
        Ok(LongCalls { room, worker: Mutex::new(Worker::Thread(work)), thread })
    }

    /// Without a thread: the kernel carries out long calls itself, as simulated cards need it.
    pub fn without_thread(room: u64) -> LongCalls {
        let room = Arc::new(PayloadRoom::new(room));
        LongCalls { room, worker: Mutex::new(Worker::Caller), thread: Mutex::new(None) }
    }

    /// Takes no more calls, and waits until those that were taken are done.
    pub fn end(&self) {
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Worker::Nobody;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that has panicked has said so.
            _ = thread.join();
        }
    }

    /// Lets the thread carry out a call, and waits for it.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) async fn carry_out<T: Send + 'static>(
        &self,
        context: &Context,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallStatus> {
        let done = self.begin(call).ok_or(CallStatus::UNAVAILABLE)?;
        loop {
            match done.try_recv() {
                Ok(done) => return Ok(done),
                Err(TryRecvError::Disconnected) => return Err(CallStatus::TRAP),
                Err(TryRecvError::Empty) => context.pause(LOOK).await?,
            }
        }
    }

    fn begin<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        let (tell, done) = mpsc::sync_channel(1);
        // A kernel that has ended meanwhile needs no answer.
        let work: Work = Box::new(move || _ = tell.send(call()));
        match &*self.worker.lock().unwrap_or_else(PoisonError::into_inner) {
            Worker::Thread(queue) => queue.send(work).ok()?,
            Worker::Caller => work(),
            Worker::Nobody => return None,
        }
        Some(done)
    }
}

impl Drop for LongCalls {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_carried_out_in_turn_and_none_after_the_end() {
        let long = LongCalls::start(0).unwrap();
        let begun: Vec<_> = (0..3).map(|n| long.begin(move || (n, vec![7])).unwrap()).collect();
        long.end();
        for (n, done) in (0..).zip(begun) {
            assert_eq!(done.recv().unwrap(), (n, vec![7]));
        }
        assert!(long.begin(|| 0).is_none());
    }

    #[test]
    fn a_call_that_panics_is_told_as_gone() {
        let long = LongCalls::start(0).unwrap();
        let done = long.begin::<()>(|| panic!("on purpose")).unwrap();
        assert!(done.recv().is_err());
    }
}
