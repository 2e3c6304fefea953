//! The background thread: drives the card while no application thread does.
//!
//! Two busy processes on two cores must not fight their own background threads. So the thread only
//! looks in, every millisecond or so, as long as somebody polls; when it finds that nobody has, it
//! sleeps on the socket and handles what comes at once, until somebody polls again. Behind each
//! packet it keeps looking for a while, as another often follows: unless others want its core.
//!
//! # Why no wake-up is lost
//! Work is whatever a step would move: packets in the socket, things to send, timers, a step back
//! from a full socket. The thread is in one of three places:
//!
//! - *Asleep on the socket* (`SLEEPING`, without an end if no timer runs). It goes there under the
//!   driver's lock, when a step has found nothing and nothing is left to send; under the same lock
//!   it publishes the time of the next timer. Whoever changes the card afterwards has the lock, and
//!   so finds `SLEEPING` and that time: [`Background::note_poll`] after polls, and
//!   `Shared::after_command` after commands, wake it for what is left to send, and
//!   [`Background::due`] for a timer that is earlier. The wake-up is a count in the kernel, which
//!   stays until the thread has read it; and after that it looks at everything anew. The socket
//!   wakes it by itself, and when it is full its having room does.
//! - *Leaving the work to others* (`RESTING`). What is told it then may be lost (`doing`,
//!   `attention` and `wakes_at` are written without the lock), but it is back within
//!   [`LOOK_IN_MAX`] whatever happens, and goes on to drive unless somebody has polled eight times
//!   in that time, or moved as many packets as count for that.
//! - *At work*, or on its way between these: it looks at everything before it sleeps.
//!
//! Tasks that wait for requests are woken by this thread, or by one that polls a future: see
//! [`crate::wakes`].
//!
//! So a card that nobody polls any more is late by twice [`LOOK_IN_MAX`] at most. What this needs
//! is that nobody changes the card, lets go of the lock, and neither polls nor calls
//! `after_command`.

pub(crate) mod signals;

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_nic::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::signals::{RESTING, SLEEPING, UNSENT_FOR};
use crate::driver::{Driver, PACE};
use crate::live::Shared;

/// How soon after the last poll the thread takes over, at least and at most.
const LOOK_IN_MIN: Duration = Duration::from_micros(250);
const LOOK_IN_MAX: Duration = Duration::from_millis(1);
/// Steps in a row before it is looked at whether somebody polls again.
const STEPS: usize = 64;

/// How long an acknowledge waits for an answer to ride behind, where somebody may be watching
/// memory: long enough for a thread that this one has displaced to come back. (Not longer than
/// until the next packet: who has answered, and sleeps, waits for this thread to receive it.)
const LINGER: Duration = Duration::from_micros(200);
/// Packets at a time that show a stream of data: what a sender's long messages leave in.
const STREAM: usize = 8;
/// How long the thread keeps looking when nothing more comes. A sender of a stream needs some 10 µs
/// for the next system call's worth, and several times that where something else has its core; who
/// asks one thing after another needs less. To be put to sleep and woken for each costs this thread
/// as much, and the sender, whose system call does the waking, a part of its own time. (1,400
/// sleeps a second took a tenth of perftest's bandwidth. READs of 8 bytes took 11 or 23 µs, by
/// which core the thread was woken on, and take 7.)
const STAY: Duration = Duration::from_micros(100);
/// How long it stays for streams only, after another thread has used the core meanwhile: that may
/// be who waits for the next packet, and has the core to the end of its turn.
const CROWDED: Duration = Duration::from_secs(1);

/// How long after polling a program is one that may.
const ATTENDED: Duration = Duration::from_millis(10);

/// The thread's life; it ends when the device is closed.
pub(crate) fn run(shared: &Shared, real_time: bool) {
    let mut look_in = LOOK_IN_MIN;
    let mut kept = Kept::default();
    let mut last_polled: Option<Instant> = None;
    let mut stay = Stay { streams_only: real_time, ..Stay::default() };
    let _here = shared.wakes.here();
    while !shared.background.stop.load(Ordering::Acquire) {
        shared.wakes.deliver();
        if shared.background.others_poll() {
            last_polled = Some(Instant::now());
            look_in = (look_in * 2).min(LOOK_IN_MAX);
            let (start, mut left) = (Instant::now(), look_in);
            while !left.is_zero() {
                let nap = if kept.look(shared) { UNSENT_FOR } else { left };
                shared.wakes.deliver();
                let woken = rest(shared, nap.min(left));
                left = if woken { Duration::ZERO } else { look_in.saturating_sub(start.elapsed()) };
            }
            continue;
        }
        look_in = LOOK_IN_MIN;
        let attended = last_polled.is_some_and(|at| at.elapsed() < ATTENDED);
        drive(shared, attended, &mut stay);
    }
}

/// Whether the thread keeps looking where nothing came.
#[derive(Default)]
struct Stay {
    until: Time,
    /// Not for single packets. (A real-time thread lets no other go first.)
    streams_only: bool,
    crowded_until: Time,
}

impl Stay {
    /// So many packets came with the last step.
    fn received(&mut self, packets: usize, now: Time) {
        let single = !self.streams_only && now >= self.crowded_until;
        if packets >= if single { 1 } else { STREAM } {
            self.until = now + STAY;
        }
    }

    /// Others went first, for so long.
    fn gave_way(&mut self, time: Duration, now: Time) {
        if time >= STAY {
            self.crowded_until = now + CROWDED;
        }
    }
}

/// What the thread knows of posts that are kept back.
#[derive(Default)]
struct Kept {
    /// [`Background::kept_back`] at the last look.
    times: u32,
    /// There were some.
    now: bool,
}

impl Kept {
    /// Is work kept back that was posted, or was any since the last look? If so, the thread rests
    /// in short naps, and nobody needs to wake it for the next. What was kept back for long is
    /// sent. (The lock is not taken for less: whoever polls has it most of the time, and two
    /// threads of one core would change places for it, several times a look.)
    fn look(&mut self, shared: &Shared) -> bool {
        let times = shared.background.kept_back.load(Ordering::Acquire);
        let news = std::mem::replace(&mut self.times, times) != times;
        if news || self.now {
            let mut driver = shared.lock();
            if driver.unsent.posts > 0 && driver.now() >= driver.unsent.since + UNSENT_FOR {
                shared.after_command(&mut driver);
            }
            self.now = driver.unsent.posts > 0;
        }
        news || self.now
    }
}

/// Lets whoever polls drive; returns whether somebody woke the thread.
fn rest(shared: &Shared, time: Duration) -> bool {
    let wakes_at = shared.clock.now() + time;
    shared.background.wakes_at.store(wakes_at.0, Ordering::Release);
    shared.background.doing.store(RESTING, Ordering::Relaxed);
    // Nothing to do on failure but to look again.
    let woken =
        poll(&mut [PollFd::new(&*shared.background.wake, PollFlags::IN)], Some(&spec(time)));
    shared.background.wake.drain().ok();
    woken != Ok(0)
}

/// Takes steps until nothing moves, or a number of them, or somebody else wants the card; returns
/// whether the first of these it was. The last step has been taken under the lock that is returned.
fn take_steps<'a>(
    shared: &'a Shared,
    attended: bool,
    stay: &mut Stay,
) -> (MutexGuard<'a, Driver>, bool) {
    let mut driver = shared.lock();
    for _ in 0..STEPS {
        let moved = driver.progress();
        if moved {
            stay.received(driver.received_last(), driver.now());
        }
        if shared.wakes.any() {
            drop(driver);
            shared.wakes.deliver();
            driver = shared.lock();
        }
        if moved {
            if attended && driver.owes_acknowledge_only() {
                // A program that now watches memory for this message will answer it, and the
                // acknowledge then rides behind the answer. Were it sent alone, it would be all
                // that the peer's poll gets; the peer, too, would then watch memory and not poll,
                // and the two would wait for each other's background thread each time.
                drop(driver);
                linger(shared);
                driver = shared.lock();
            }
        } else if driver.is_blocked() || driver.now() >= stay.until {
            return (driver, true);
        } else {
            // Whoever else has use for this core, or for the card, goes first.
            drop(driver);
            let before = shared.clock.now();
            std::thread::yield_now();
            let now = shared.clock.now();
            stay.gave_way(now.since(before), now);
            driver = shared.lock();
        }
        if shared.is_wanted() {
            break;
        }
    }
    (driver, false)
}

/// Waits for [`LINGER`], or until a packet comes or somebody wakes the thread. (What woke it is not
/// read here: it is looked at behind the next sleep, which does not last.)
fn linger(shared: &Shared) {
    let mut fds = [
        PollFd::from_borrowed_fd(shared.socket_fd(), PollFlags::IN),
        PollFd::new(&*shared.background.wake, PollFlags::IN),
    ];
    // Nothing to do on failure but to look again.
    let _ = poll(&mut fds, Some(&spec(LINGER)));
}

/// Drives the card until nothing moves, then sleeps until something does. `attended`: the program
/// has polled not long ago.
fn drive(shared: &Shared, attended: bool, stay: &mut Stay) {
    let (socket_wants, timeout, groups) = {
        let (mut driver, settled) = take_steps(shared, attended, stay);
        if let Err(error) = driver.flush_capture() {
            tracing::warn!(%error, "cannot write to the capture file");
        }
        // The last step may have found nothing to move and yet made work: see `has_more`.
        if !settled || driver.has_more() && !driver.is_blocked() {
            drop(driver);
            if shared.is_wanted() {
                // Or it would be this thread again that gets the lock, where both have one core.
                std::thread::yield_now();
            }
            return;
        }
        shared.background.doing.store(SLEEPING, Ordering::Relaxed);
        let due = driver.nic.poll_timeout();
        shared.background.wakes_at.store(due.0, Ordering::Release);
        let timeout = (due != Time::NEVER).then(|| due.since(driver.now()));
        // The kernel tells when there is room in this socket, and not of a peer's.
        let paced = driver.is_paced();
        let timeout = if paced { Some(timeout.map_or(PACE, |t| t.min(PACE))) } else { timeout };
        let full = driver.is_blocked() && !paced;
        let wants = if full { PollFlags::OUT } else { PollFlags::empty() };
        (PollFlags::IN | wants, timeout, driver.groups.clone())
    };
    // Behind this, whoever has news wakes the thread.
    shared.wakes.deliver();
    let fds = [
        PollFd::from_borrowed_fd(shared.socket_fd(), socket_wants),
        PollFd::new(&*shared.background.wake, PollFlags::IN),
    ];
    if groups.is_empty() {
        let _ = poll(&mut { fds }, timeout.map(spec).as_ref());
    } else {
        let joined = groups.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().chain(joined).collect();
        let _ = poll(&mut fds, timeout.map(spec).as_ref());
    }
    shared.background.wake.drain().ok();
}

fn spec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stays_for_a_packet_unless_others_want_the_core() {
        let mut stay = Stay::default();
        let start = Time::ZERO + Duration::from_secs(1);
        stay.received(0, start);
        assert_eq!(stay.until, Time::ZERO);
        stay.received(1, start);
        assert_eq!(stay.until, start + STAY);

        stay.gave_way(STAY / 2, start + STAY);
        stay.received(1, start + STAY);
        assert_eq!(stay.until, start + STAY + STAY, "a short while is nobody's turn");

        let crowded = start + 2 * STAY;
        stay.gave_way(STAY, crowded);
        stay.received(STREAM - 1, crowded);
        assert_eq!(stay.until, crowded, "as before");
        stay.received(STREAM, crowded);
        assert_eq!(stay.until, crowded + STAY);
        stay.received(1, crowded + CROWDED);
        assert_eq!(stay.until, crowded + CROWDED + STAY);
    }

    #[test]
    fn a_real_time_thread_stays_for_streams_only() {
        let mut stay = Stay { streams_only: true, ..Stay::default() };
        stay.received(STREAM - 1, Time::ZERO);
        assert_eq!(stay.until, Time::ZERO);
        stay.received(STREAM, Time::ZERO);
        assert_eq!(stay.until, Time::ZERO + STAY);
    }
}
