//! The background thread: drives the card while no application thread does.
//!
//! Two busy processes on two cores must not compete with their own background threads. So as long
//! as an application thread polls, or an [event loop](crate::event_loop) drives the card, the
//! background thread only looks in, every millisecond or so. When it finds that no thread has
//! polled, it sleeps on the socket and handles packets as they come, until a thread polls again.
//! After each packet it keeps looking for a while, since another often follows, unless other
//! threads want its core.
//!
//! `signals.rs` has what the threads tell each other. Tasks that wait for requests are woken as
//! [`crate::wakes`] says.
//!
//! # Why no wake-up is lost
//! Work is all that a step would move: packets in the socket, packets to send, timers, the rest of
//! a batch for which the socket had no room. The background thread is in one of three places:
//!
//! - *Asleep on the socket* (`SLEEPING`, without a time limit if no timer runs). It goes there
//!   under the driver's lock, when a step has found nothing and nothing is left to send; under the
//!   same lock it publishes the time of the next timer. A thread that changes the card afterwards
//!   holds the lock, and so sees `SLEEPING` and that time. It wakes the background thread for
//!   what is left to send ([`Background::note_poll`] after polls, `Shared::after_command` after
//!   commands), and for an earlier timer ([`Background::due`]). The wake-up is a count in the
//!   kernel, which stays until the background thread has read it; then the thread looks at
//!   everything again. A packet in the socket wakes it too, and so does room in a full socket.
//!   So does a packet in a ring, by its writer's call: one for each sleep, which only the thread
//!   that sleeps reads (`fabric/links.rs`).
//! - *Leaving the work to the application* (`RESTING`). Signals to it may get lost then (`doing`,
//!   `attention` and `wakes_at` are written without the lock). But it is back within
//!   [`LOOK_IN_MAX`] in any case, and then drives unless application threads have polled eight
//!   times in that time, or moved as many packets as count for eight polls, or an event loop has
//!   taken a turn.
//! - *At work*, or on its way between these: it looks at everything before it sleeps.
//!
//! So a card that no thread polls any more is late by twice [`LOOK_IN_MAX`] at most. This holds if
//! each thread that changes the card polls or calls `after_command` before it unlocks the driver.
//!
//! An event loop that drives the card sleeps with the sockets behind its alarm, so packets wake it.
//! At the end of each turn it says in all rings that it sleeps, and no other thread reads the calls
//! of their writers.
//! Two more things are to be done while it sleeps. What it has posted and not sent: it is known to
//! come back for other events, or its alarm is rung. Timers: this thread, whose naps end with the
//! next one ([`serve_timers`]); the loop wakes it for an earlier one when a turn has found nothing.
//! A loop that takes no turn is idle, or busy elsewhere. So this thread takes steps in its place,
//! and after [`ATTENDED`] takes the card from it: the sockets leave the alarm, and the thread
//! sleeps on them. Both happen under the driver's lock, and steps follow, so no packet is
//! overlooked in between. What the thread then announces rings the bells of alarms, as it did
//! before there was a loop.

pub(crate) mod signals;

use std::os::fd::AsFd;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_nic::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use self::signals::{RESTING, SLEEPING, UNSENT_FOR};
use crate::driver::{Groups, PACE};
use crate::either::Driver;
use crate::live::Shared;

/// How soon after the last poll the thread takes over, at least and at most.
const LOOK_IN_MIN: Duration = Duration::from_micros(250);
const LOOK_IN_MAX: Duration = Duration::from_millis(1);
/// Steps in a row that move what other processes have posted, at most, before the next look at the
/// socket: that takes a system call, as long as it takes to move a short message within the card.
const SERVES: u32 = 4;
/// Steps in a row before the thread looks whether an application thread polls again.
const STEPS: usize = 64;

/// How long an acknowledge waits for an answer to ride behind, where an application may be watching
/// memory: long enough for a thread that the background thread has displaced to come back. (It
/// waits no longer than until the next packet, since an application that has answered and sleeps
/// waits for the background thread to receive that packet.)
const LINGER: Duration = Duration::from_micros(200);
/// Packets in one step that show a stream of data: long messages leave in groups of at least this
/// many.
const STREAM: usize = 8;
/// How long the thread keeps looking when nothing more comes. A sender of a stream needs some 10 µs
/// to fill the next system call, and several times that where other work has its core; a peer that
/// sends one request after another needs less. To sleep and be woken for each costs this thread as
/// much, and costs the sender too, whose system call does the waking. (1,400 sleeps a second take a
/// tenth of perftest's bandwidth, and make a READ of 8 bytes take 11 or 23 µs instead of 7.)
const STAY: Duration = Duration::from_micros(100);
/// As [`STAY`], for the next post of another process, where no other thread wants the core: the
/// process's system call to wake this thread, and the waking, would cost more than all else.
const STAY_SERVING: Duration = Duration::from_millis(20);
/// How long the thread stays for streams only, after another thread has used the core meanwhile.
/// That thread may be the one that waits for the next packet, and it has the core to the end of its
/// turn.
const CROWDED: Duration = Duration::from_secs(1);

/// How long after its last poll, or its last turn, a program is taken for one that polls, or for an
/// event loop that is at work.
const ATTENDED: Duration = Duration::from_millis(10);

/// The thread's life; it ends when the device is closed.
pub(crate) fn run(shared: &Shared, real_time: bool) {
    let mut look_in = LOOK_IN_MIN;
    let mut kept = Kept::default();
    let mut last_polled: Option<Instant> = None;
    let mut watched = Watched::default();
    let mut stay = Stay { streams_only: real_time, ..Stay::default() };
    let _here = shared.wakes.here();
    while !shared.background.stop.load(Ordering::Acquire) {
        shared.wakes.deliver();
        let by_loop = shared.background.by_loop();
        let quiet = watched.quiet(shared);
        let loop_ended = by_loop && quiet.is_none();
        // Commands of other processes are no polls; their posts wait for this thread.
        let serves = shared.doorbells.get().is_some();
        if shared.background.others_poll() && !loop_ended && !serves {
            last_polled = Some(Instant::now());
            look_in = (look_in * 2).min(LOOK_IN_MAX);
            leave_to_others(shared, look_in, &mut kept);
            continue;
        }
        if quiet.is_some_and(|quiet| stand_in(shared, quiet)) {
            leave_to_others(shared, LOOK_IN_MAX, &mut kept);
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
    /// The thread does not stay for single packets. (A real-time thread never gives way, so it must
    /// not take the core for each of them.)
    streams_only: bool,
    crowded_until: Time,
}

impl Stay {
    /// The last step received `packets` packets.
    fn received(&mut self, packets: usize, now: Time) {
        let single = !self.streams_only && now >= self.crowded_until;
        if packets >= if single { 1 } else { STREAM } {
            self.until = now + STAY;
        }
    }

    /// Another process has posted something: it is at work, and does so without a system call only
    /// while this thread looks.
    fn served(&mut self, now: Time) {
        let spare = !self.streams_only && now >= self.crowded_until;
        self.until = now + if spare { STAY_SERVING } else { STAY };
    }

    /// Other threads used the core for `time`.
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
    /// Posts were kept back at the last look.
    now: bool,
}

impl Kept {
    /// Are posts kept back, or were any since the last look? If so, the thread rests in short naps,
    /// and the application need not wake it for the next post. Posts that were kept back for long
    /// enough are sent. (If not, the lock is not taken: the thread that polls has it most of the
    /// time, and two threads on one core would swap several times for it at each look.)
    fn look(&mut self, shared: &Shared) -> bool {
        let times = shared.background.kept_back.load(Ordering::Acquire);
        let more = std::mem::replace(&mut self.times, times) != times;
        if more || self.now {
            let mut driver = shared.lock();
            if driver.own().unsent.posts > 0
                && driver.now() >= driver.own().unsent.since + UNSENT_FOR
            {
                shared.after_command(&mut driver);
            }
            self.now = driver.own().unsent.posts > 0;
        }
        more || self.now
    }
}

/// What the thread knows of the event loop that drives the card.
#[derive(Default)]
struct Watched {
    /// [`Background::turns`] at the last look, and when they had changed.
    turns: u32,
    at: Option<Instant>,
}

impl Watched {
    /// For how long the event loop that has the card has taken no turn; nothing if no loop has it.
    /// A loop that is idle loses it, and so does one beside which another thread sleeps.
    fn quiet(&mut self, shared: &Shared) -> Option<Duration> {
        let asked = shared.background.was_asked();
        if !shared.background.by_loop() {
            return None;
        }
        let turns = shared.background.turns();
        if std::mem::replace(&mut self.turns, turns) != turns {
            self.at = Some(Instant::now());
        }
        let quiet = self.at.map_or(ATTENDED, |at| at.elapsed());
        if asked || quiet >= ATTENDED {
            shared.end_loop(shared.lock().own());
            return None;
        }
        Some(quiet)
    }
}

/// Takes steps in the place of the event loop that has the card. It has taken no turn for the time
/// `quiet`, since it sleeps, or is busy elsewhere. Returns whether it keeps the card.
fn stand_in(shared: &Shared, quiet: Duration) -> bool {
    if quiet < LOOK_IN_MIN {
        return true;
    }
    let mut driver = shared.lock();
    let moves = (0..STEPS).all(|_| driver.own().progress() && !shared.is_wanted());
    if moves || driver.own().is_blocked() || !driver.own().event_loop.drives() {
        // Too much for naps, or what it waits for is room.
        shared.end_loop(driver.own());
    }
    drop(driver);
    shared.wakes.deliver();
    shared.background.by_loop()
}

/// Leaves the driving to the threads that poll, or to an event loop, for `time` or until woken.
fn leave_to_others(shared: &Shared, time: Duration, kept: &mut Kept) {
    let (start, mut left) = (Instant::now(), time);
    while !left.is_zero() {
        let mut nap = if kept.look(shared) { UNSENT_FOR } else { left };
        if shared.background.by_loop() {
            nap = nap.min(serve_timers(shared));
        }
        shared.wakes.deliver();
        let woken = rest(shared, nap.min(left));
        left = if woken { Duration::ZERO } else { time.saturating_sub(start.elapsed()) };
    }
}

/// Does what is due while an event loop sleeps; returns how long nothing else will be.
fn serve_timers(shared: &Shared) -> Duration {
    // If another thread has the lock, the loop is at work, and looks at the timers itself.
    let Some(mut driver) = shared.try_lock() else { return LOOK_IN_MAX };
    let now = driver.now();
    let kept_back = driver.own().unsent.posts > 0 && now >= driver.own().unsent.since + UNSENT_FOR;
    if kept_back || driver.own().poll_timeout() <= now {
        driver.own().progress();
    }
    let left = driver.own().poll_timeout().since(now);
    // Where packets are held on purpose, they are to go on in their time.
    if driver.own().arriving.is_some() { left } else { left.max(UNSENT_FOR) }
}

/// Leaves the driving to the thread that polls; returns whether the background thread was woken.
fn rest(shared: &Shared, time: Duration) -> bool {
    let wakes_at = shared.clock.now() + time;
    shared.background.wakes_at.store(wakes_at.0, Ordering::Release);
    shared.background.doing.store(RESTING, Ordering::Relaxed);
    // If this fails, the thread looks again at once.
    let woken =
        poll(&mut [PollFd::new(&*shared.background.wake, PollFlags::IN)], Some(&spec(time)));
    shared.background.wake.drain().ok();
    woken != Ok(0)
}

/// Takes steps until nothing moves, at most [`STEPS`] of them and until another thread wants the
/// card; returns whether they ended because nothing moved. The last step was taken under the lock
/// that is returned.
fn take_steps<'a>(
    shared: &'a Shared,
    attended: bool,
    stay: &mut Stay,
) -> (MutexGuard<'a, Driver>, bool) {
    let mut driver = shared.lock();
    let mut serves = 0;
    for _ in 0..STEPS {
        let served = driver.own().serve();
        serves = if served { (serves + 1) % SERVES } else { 0 };
        let moved = serves > 0 || driver.own().progress() || served;
        if served {
            stay.served(driver.now());
        } else if moved {
            stay.received(driver.own().received_last(), driver.now());
        }
        if shared.wakes.any() {
            drop(driver);
            shared.wakes.deliver();
            driver = shared.lock();
        }
        if moved {
            if attended && driver.own().owes_acknowledge_only() {
                // A program that watches memory for this message will answer it, and then the
                // acknowledge rides behind the answer. If it left alone, the peer's poll would get
                // it without the answer. The peer would then watch memory too instead of polling,
                // and both would wait for each other's background thread each time.
                let may_sleep = driver.own().fabric.sleeps();
                drop(driver);
                if may_sleep {
                    linger(shared);
                    shared.sleep.ends();
                }
                driver = shared.lock();
            }
        } else if driver.own().is_blocked() || driver.now() >= stay.until {
            return (driver, true);
        } else {
            // Other threads that want this core, or the card, go first.
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

/// Waits for [`LINGER`], or until a packet comes or the thread is woken. (The wake-up is not read
/// here. It ends the next sleep at once, and the thread reads it there.)
fn linger(shared: &Shared) {
    // If this fails, the thread looks again at once.
    let _ = sleep_on(shared, PollFlags::IN, &Groups::default(), Some(LINGER));
}

/// Sleeps until packets come, the socket is as it is wanted, the thread is woken, or time is up.
/// Returns whether the socket has news of packets that were sent: they keep it readable until they
/// are taken.
fn sleep_on(
    shared: &Shared,
    socket_wants: PollFlags,
    groups: &Groups,
    timeout: Option<Duration>,
) -> Result<bool, Errno> {
    let wake = PollFd::new(&*shared.background.wake, PollFlags::IN);
    let mut fds = [wake.clone(), wake.clone(), wake.clone(), wake];
    let mut count = 1;
    let doorbells = shared.doorbells.get().map(AsFd::as_fd);
    let wants = [socket_wants, PollFlags::IN, PollFlags::IN];
    for (fd, wants) in shared.fds().chain(doorbells).zip(wants) {
        fds[count] = PollFd::from_borrowed_fd(fd, wants);
        count += 1;
    }
    let timeout = timeout.map(spec);
    let has_news = |fds: &[PollFd<'_>]| fds[1].revents().contains(PollFlags::ERR);
    if groups.is_empty() {
        poll(&mut fds[..count], timeout.as_ref())?;
        return Ok(has_news(&fds));
    }
    let joined = groups.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN));
    let mut fds: Vec<PollFd<'_>> = fds[..count].iter().cloned().chain(joined).collect();
    poll(&mut fds, timeout.as_ref())?;
    Ok(has_news(&fds))
}

/// Drives the card until nothing moves, then sleeps until something does. `attended` says that the
/// program has polled within [`ATTENDED`].
fn drive(shared: &Shared, attended: bool, stay: &mut Stay) {
    let (socket_wants, timeout, groups) = {
        let (mut driver, settled) = take_steps(shared, attended, stay);
        driver.own().recorder.flush();
        // The last step may have found nothing to move and yet made work: see `has_more`.
        if !settled || driver.own().has_more() && !driver.own().is_blocked() {
            drop(driver);
            if shared.is_wanted() {
                // Otherwise this thread would get the lock again, where both have one core.
                std::thread::yield_now();
            }
            return;
        }
        if driver.own().engine.as_ref().is_some_and(|engine| !engine.will_sleep()) {
            return;
        }
        // Peers wake this thread from here on, and no packet of theirs was overlooked.
        if !driver.own().fabric.sleeps() {
            if let Some(engine) = &driver.own().engine {
                engine.woke();
            }
            return;
        }
        shared.background.doing.store(SLEEPING, Ordering::Relaxed);
        let due = driver.own().poll_timeout();
        shared.background.wakes_at.store(due.0, Ordering::Release);
        let timeout = (due != Time::NEVER).then(|| due.since(driver.now()));
        // The kernel wakes the thread for room in this socket, but not for room in a peer's.
        let paced = driver.own().is_paced();
        let timeout = if paced { Some(timeout.map_or(PACE, |t| t.min(PACE))) } else { timeout };
        let full = driver.own().is_blocked() && !paced;
        let wants = if full { PollFlags::OUT } else { PollFlags::empty() };
        (PollFlags::IN | wants, timeout, driver.own().groups.clone())
    };
    // From here on, a thread that notes news wakes this one.
    shared.wakes.deliver();
    // If this fails, the thread looks again at once.
    let has_news = sleep_on(shared, socket_wants, &groups, timeout) == Ok(true);
    shared.sleep.ends();
    if has_news {
        shared.lock().own().fabric.hear_refusals();
    }
    shared.background.wake.drain().ok();
    if shared.doorbells.get().is_some()
        && let Some(engine) = &shared.lock().own().engine
    {
        engine.woke();
    }
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
        assert_eq!(
            stay.until,
            start + STAY + STAY,
            "a short while means that no thread wanted the core"
        );

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
