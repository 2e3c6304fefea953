//! The host's fallback: calls that no kernel is deployed for (StRoM §5.1).

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{CallStatus, FallbackCall};
use crate::channel::deadline;
use crate::device::Device;
use crate::live::Live;

/// Takes the calls that no kernel is deployed for. After it is dropped, callers are told again that
/// there is no kernel.
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let fallback = device.serve_fallback();
/// // In a thread of its own:
/// if let Some(call) = fallback.next(Duration::ZERO) {
///     fallback.answer(&call, remora::kernel::CallStatus::OK, b"by hand");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fallback {
    live: Arc<Live>,
    bell: Arc<Bell>,
    number: u32,
}

/// Wakes the thread that waits for a call; each call rings it.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl Device {
    /// From now on, calls for which no kernel is deployed wait for the host: up to 64 of them, with
    /// up to a megabyte of payload each. A device has one fallback: a second takes over what waits,
    /// and the first gets no more calls.
    pub fn serve_fallback(&self) -> Fallback {
        let bell = Arc::new(Bell::default());
        let rings = bell.clone();
        let tell = Box::new(move || {
            *rings.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
            rings.ring.notify_one();
        });
        let number = self.live.lock().kernels(|kernels, _| kernels.set_fallback(tell));
        Fallback { live: self.live.clone(), bell, number: number.unwrap_or_default() }
    }
}

impl Fallback {
    /// The next call; `None` if none comes within `timeout`.
    pub fn next(&self, timeout: Duration) -> Option<FallbackCall> {
        let end = deadline(timeout);
        loop {
            let mut driver = self.live.lock();
            let next = driver.kernels(|kernels, _| kernels.next_fallback(self.number)).flatten();
            drop(driver);
            if next.is_some() {
                return next;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let mut rung = self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner);
            if !*rung {
                let waited = self.bell.ring.wait_timeout(rung, left);
                rung = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            *rung = false;
        }
    }

    /// Answers a call.
    pub fn answer(&self, call: &FallbackCall, status: CallStatus, result: &[u8]) {
        self.live.command(|driver| {
            driver.kernels(|kernels, io| kernels.answer(io, call.id, status, result));
        });
    }
}

impl Drop for Fallback {
    fn drop(&mut self) {
        self.live.command(|driver| {
            driver.kernels(|kernels, io| kernels.end_fallback(io, self.number));
        });
    }
}
