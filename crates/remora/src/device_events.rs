//! A device's asynchronous events: what no completion reports.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use remora_nic::Event as CardEvent;

use crate::event::Event;
use crate::live::Live;
use crate::news::Concerned;

/// A device's asynchronous events: errors and limits that no completion reports.
///
/// The descriptor ([`AsFd`]) is readable while there are events, for a thread or a reactor to wait
/// on; the feature `tokio` has them awaited. All handles of a device share one queue of events.
///
/// ```
/// use remora::prelude::*;
/// use remora::nic::Event;
/// # use remora::nic::queue::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let domain = device.alloc_pd()?;
/// let shared = domain.create_srq(4, 1)?;
/// # let queue = device.create_cq(16)?;
/// # let qp = domain.create_qp(&QueuePairOptions::rc(&queue).srq(&shared))?;
/// # qp.connect(qp.local(), &ConnectionParams::new(device.info().mtu))?;
/// # shared.post_recv(&RecvRequest { wr_id: 0, sges: &[] })?;
/// shared.arm(1)?; // when the next message takes the last receive request, say so
/// # let op = SendOp::Send { imm: None, to: None };
/// # let (data, flags) = (Data::Sges(&[]), SendFlags::SIGNALED);
/// # qp.post_send(&SendRequest { wr_id: 0, op, data, flags })?;
/// let events = device.events();
/// let event = loop {
///     // A program waits for the descriptor here.
///     if let Some(event) = events.try_next() {
///         break event;
///     }
/// };
/// assert!(matches!(event, Event::SrqLimitReached(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeviceEvents {
    live: Arc<Live>,
    ready: Arc<Event>,
}

impl DeviceEvents {
    pub(crate) fn new(live: Arc<Live>) -> DeviceEvents {
        let ready = live.lock().news().async_ready.clone();
        DeviceEvents { live, ready }
    }

    /// The next event, if there is one.
    pub fn try_next(&self) -> Option<CardEvent> {
        let mut driver = self.live.lock();
        let event = driver.news().async_events.pop_front();
        if driver.news().async_events.is_empty() && self.ready.drain().is_err() {
            tracing::error!("cannot reset the descriptor of asynchronous events");
        }
        event
    }
}

impl AsRawFd for DeviceEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for DeviceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}
