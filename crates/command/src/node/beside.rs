//! Long work on a thread of its own, which nobody has to wait for.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{io, thread};

use remora::threads::without_signals;

/// How often a thread that waits checks whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// The result of `work`, which runs on a thread of its own, called `name`; `None` if `stopped`
/// says so first, or if the work panics. Work that was begun goes on, until it or the process ends.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn beside<R: Send + 'static>(
    name: &str,
    stopped: &dyn Fn() -> bool,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<Option<R>> {
    let (done, result) = mpsc::sync_channel(1);
    let run = move || drop(done.send(work()));
    let named = thread::Builder::new().name(name.into());
    without_signals(|| named.spawn(run))?;
    loop {
        match result.recv_timeout(PATIENCE) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) if !stopped() => {}
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_for_ever_keeps_nobody_from_stopping() {
        let (hold, held) = mpsc::channel::<()>();
        let endless = move || held.recv().is_ok();
        assert_eq!(beside("endless", &|| true, endless).unwrap(), None);
        drop(hold);
    }

    #[test]
    fn a_result_is_handed_over_and_a_panic_is_none() {
        assert_eq!(beside("quick", &|| false, || 7).unwrap(), Some(7));
        let broken = beside("broken", &|| false, || -> u8 { panic!("as the test wants it") });
        assert_eq!(broken.unwrap(), None);
    }
}
