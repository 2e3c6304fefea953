//! The thread of an attached device: it sleeps until the card's process has an event or ends, and
//! hands events to those that wait for them.

use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::either::Driver;
use crate::live::Shared;

/// Runs the thread until the device is closed.
pub(crate) fn run(shared: &Shared) {
    let Some((wake, socket)) = descriptors(shared) else { return };
    let _here = shared.wakes.here();
    let mut over = false;
    while !shared.background.stop.load(Ordering::Acquire) {
        let (sleeps, pause) = match &mut *shared.lock() {
            Driver::Attached(attached) => {
                attached.dispatch_events();
                attached.tell_end();
                (attached.will_sleep(), attached.pause().filter(|_| !over))
            }
            Driver::Own(_) => return,
        };
        shared.wakes.deliver();
        if !sleeps {
            continue;
        }
        // The socket is looked at for its end only: answers are for those who ask.
        let wanted = if over { PollFlags::empty() } else { PollFlags::RDHUP };
        let mut fds = [
            PollFd::new(&*shared.background.wake, PollFlags::IN),
            PollFd::new(&wake, PollFlags::IN),
            PollFd::new(&socket, wanted),
        ];
        let watched = if over { &mut fds[..1] } else { &mut fds[..] };
        let pause = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs() as i64,
            tv_nsec: i64::from(pause.subsec_nanos()),
        });
        // If this fails, the thread looks again at once.
        let _ = poll(watched, pause.as_ref());
        let ended = !over && (pause.is_some() || !fds[2].revents().is_empty());
        shared.background.wake.drain().ok();
        let mut woken = [0; 256];
        if !over {
            rustix::io::read(&wake, &mut woken).ok();
        }
        if let Driver::Attached(attached) = &mut *shared.lock() {
            attached.woke();
            if ended {
                attached.look_for_end();
                over = attached.is_lost();
            }
        }
    }
}

/// The descriptor of events, and the socket, for this thread to sleep on.
fn descriptors(shared: &Shared) -> Option<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    let driver = shared.lock();
    let Driver::Attached(attached) = &*driver else { return None };
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    match (own(attached.wake_fd()), own(attached.socket_fd())) {
        (Ok(wake), Ok(socket)) => Some((wake, socket)),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "cannot wait for events of the card’s process");
            None
        }
    }
}
