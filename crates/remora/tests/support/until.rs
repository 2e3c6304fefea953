//! Waiting for what comes about by itself.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine. Only a hang takes that long: nothing is concluded
/// from time.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pauses between looks begin short, and become no longer than this.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until something is there.
pub(crate) fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || look().ok_or("it is not so"))
}

/// Waits until nothing is wrong. If that takes too long, the last reason is told.
pub(crate) fn until_ok<T, E: Display>(what: &str, mut look: impl FnMut() -> Result<T, E>) -> T {
    let (start, mut pause) = (Instant::now(), Duration::from_micros(10));
    loop {
        match look() {
            Ok(found) => return found,
            Err(wrong) if start.elapsed() > PATIENCE => panic!("never: {what} ({wrong})"),
            Err(_) => {}
        }
        thread::sleep(pause);
        pause = PAUSE.min(pause * 2);
    }
}
