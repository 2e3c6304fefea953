//! Where the threads of a run wait for each other. A panic of one of them ends the run of all.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a thread ends with that would wait for one that has panicked.
#[derive(Debug)]
pub(super) struct Broken;

/// As [`std::sync::Barrier`], but it does not wait for those that never come.
#[derive(Debug)]
pub(super) struct Barrier {
    threads: usize,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// How often all have come.
    rounds: u64,
    is_broken: bool,
}

impl Barrier {
    /// A barrier for so many threads.
    pub(super) fn new(threads: usize) -> Barrier {
        Barrier { threads, state: Mutex::default(), moved: Condvar::new() }
    }

    /// Waits until all are here. Unwinds with [`Broken`] if one has panicked, and so never will be.
    pub(super) fn wait(&self) {
        let mut state = self.state();
        state.waiting += 1;
        if state.waiting == self.threads {
            (state.waiting, state.rounds) = (0, state.rounds + 1);
            return self.moved.notify_all();
        }
        let round = state.rounds;
        while state.rounds == round && !state.is_broken {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.rounds == round {
            drop(state);
            resume_unwind(Box::new(Broken));
        }
    }

    /// What a thread does. If it panics, those that wait for it end, too.
    pub(super) fn run<T>(&self, act: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
        let ran = catch_unwind(AssertUnwindSafe(act));
        if ran.is_err() {
            self.state().is_broken = true;
            self.moved.notify_all();
        }
        ran
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_wait_of_the_others() {
        let barrier = Barrier::new(2);
        let come = |times: u32| {
            barrier.run(|| {
                for i in 0.. {
                    assert!(i < times, "this one comes no more");
                    barrier.wait();
                }
            })
        };
        let (own, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| come(5));
            (come(u32::MAX), other.join().unwrap())
        });
        assert!(own.unwrap_err().is::<Broken>());
        assert!(!other.unwrap_err().is::<Broken>());
    }
}
