//! Completion channels and asynchronous events in tokio's reactor (feature `tokio`).
//!
//! [Requests](crate::request) and [handshakes](crate::connection::Handshake) need no reactor: they
//! are plain futures. This module is for programs that poll completion queues of their own, and for
//! a device's asynchronous events. With another reactor, wait until [`CompletionChannel`] (it is
//! [`AsFd`](std::os::fd::AsFd)), or [`DeviceEvents`], is readable, and then do as this module does.

use std::io;
use std::os::fd::AsRawFd;

use remora_nic::Event;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::channel::CompletionChannel;
use crate::device::Device;
use crate::device_events::DeviceEvents;

/// A completion channel whose notifications are awaited.
///
/// ```
/// use remora::prelude::*;
/// use remora::tokio::AsyncChannel;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use remora::nic::queue::{Data, SendFlags, SendOp, SendRequest};
/// let device = Device::open()?;
/// let channel = device.create_channel()?;
/// let queue = device.create_cq_on(&channel, 16)?;
/// # let qp = device.alloc_pd()?.create_qp(&QueuePairOptions::rc(&queue))?;
/// # qp.loop_back(&qp, Access::all())?;
/// queue.arm(false)?;
/// // Work is posted, here or by another task; its end wakes this one.
/// # let (op, data, flags) = (SendOp::NoOp, Data::Sges(&[]), SendFlags::SIGNALED);
/// # qp.post_send(&SendRequest { wr_id: 5, op, data, flags })?;
/// let mut channel = AsyncChannel::new(channel)?;
/// assert_eq!(channel.next().await?, queue.handle());
/// let mut done = [Completion::default(); 4];
/// assert_eq!(queue.poll(&mut done)?, 1);
/// done[0].ok()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncChannel {
    channel: AsyncFd<CompletionChannel>,
}

impl AsyncChannel {
    /// Puts a channel into the reactor of the task that calls.
    ///
    /// # Errors
    /// The reactor takes no more.
    ///
    /// # Panics
    /// There is no reactor: the caller is not a task of tokio's.
    pub fn new(channel: CompletionChannel) -> io::Result<AsyncChannel> {
        Ok(AsyncChannel { channel: register(channel)? })
    }

    /// The next notification: the handle of a completion queue.
    ///
    /// # Errors
    /// The reactor has ended.
    pub async fn next(&mut self) -> io::Result<u32> {
        loop {
            let mut ready = self.channel.readable().await?;
            if let Some(queue) = ready.get_inner().try_next() {
                return Ok(queue);
            }
            ready.clear_ready();
        }
    }
}

/// A device's asynchronous events, awaited.
///
/// ```
/// use remora::prelude::*;
/// use remora::tokio::AsyncEvents;
/// # use remora::nic::queue::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
/// let event = AsyncEvents::new(&device)?.next().await?;
/// assert!(matches!(event, remora::nic::Event::SrqLimitReached(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncEvents {
    events: AsyncFd<DeviceEvents>,
}

impl AsyncEvents {
    /// Puts a device's events into the reactor of the task that calls.
    ///
    /// # Errors
    /// The reactor takes no more.
    ///
    /// # Panics
    /// There is no reactor: the caller is not a task of tokio's.
    pub fn new(device: &Device) -> io::Result<AsyncEvents> {
        Ok(AsyncEvents { events: register(device.events())? })
    }

    /// The next event.
    ///
    /// # Errors
    /// The reactor has ended.
    pub async fn next(&mut self) -> io::Result<Event> {
        loop {
            let mut ready = self.events.readable().await?;
            if let Some(event) = ready.get_inner().try_next() {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }
}

/// Puts a descriptor into the reactor. Newer releases of tokio deprecate this in favour of an
/// unsafe function, whose caller promises to keep the descriptor open. The owners here do so.
#[allow(deprecated, reason = "older releases have no other")]
fn register<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}
