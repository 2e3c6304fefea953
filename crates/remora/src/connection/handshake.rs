//! The steps of connection management that wait for the peer, and why they fail.
//!
//! What the two sides tell each other (queue pair numbers, PSNs, private data) is in
//! [`connect`](super::connect) and [`listen`](super::listen).

use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use remora_nic::cm::message::RejectReason;
use remora_nic::cm::{CmEvent, CommandError, ConnectError};
use remora_nic::qp::{ModifyQpError, Mtu};
use thiserror::Error;

use super::inbox::Topic;
use crate::channel::deadline;
use crate::either::Driver;
use crate::live::Live;
use crate::news::Concerned;
use crate::text::printable;

/// Why a connection did not come about.
#[derive(Debug, Error)]
pub enum ConnectFailure {
    /// The card refuses the request to connect.
    #[error(transparent)]
    Request(#[from] ConnectError),
    /// The connection is not in a state for this command.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The card refuses to ready the queue pair.
    #[error("the queue pair cannot be connected: {0}")]
    QueuePair(#[from] ModifyQpError),
    /// The peer refuses the connection.
    #[error("{}", refusal(*.reason, .message))]
    Rejected {
        /// The peer's reason.
        reason: RejectReason,
        /// The peer's message, if it sent any. It may hold any characters; see [`printable`].
        message: String,
    },
    /// The peer does not answer.
    #[error("{0} does not answer: is its device up, and is this its address?")]
    Unreachable(IpAddr),
    /// The peer asks for a larger path MTU than ours. It was told so, and may ask again with less.
    #[error("the peer asks for the path MTU with code {asked}; ours is {} bytes", .ours.bytes())]
    Mtu {
        /// The code of the path MTU that the peer asks for.
        asked: u8,
        /// This side's path MTU.
        ours: Mtu,
    },
    /// The step took too long.
    #[error("no connection within {0:?}")]
    Timeout(Duration),
}

fn refusal(reason: RejectReason, message: &str) -> String {
    if reason == RejectReason::INVALID_SERVICE_ID {
        return "the peer has a card, but nobody listens on that port of it".to_owned();
    }
    let said = if message.is_empty() { "" } else { ": " };
    format!("the peer refuses the connection ({reason:?}){said}{}", printable(message))
}

/// A step of connection management that waits for a message of the peer: a future. It begins when
/// it is first polled or waited for. If it is dropped, the attempt ends, and the peer is told.
///
/// ```
/// use remora::prelude::*;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = Device::open()?.listen(7471)?;
/// let accepting: Handshake<_> = listener.accept();
/// // In an async function: `accepting.await?`. In any other:
/// assert!(accepting.wait(Duration::ZERO).is_err(), "no peer has asked");
/// # Ok(())
/// # }
/// ```
#[must_use = "a step does not begin until it is awaited or waited for"]
pub struct Handshake<'a, T> {
    step: Pin<Box<dyn Future<Output = Result<T, ConnectFailure>> + Send + 'a>>,
}

impl<'a, T> Handshake<'a, T> {
    pub(super) fn new(
        step: impl Future<Output = Result<T, ConnectFailure>> + Send + 'a,
    ) -> Handshake<'a, T> {
        Handshake { step: Box::pin(step) }
    }

    /// Waits in an ordinary thread, for at most `timeout`.
    ///
    /// # Errors
    /// See [`ConnectFailure`].
    pub fn wait(mut self, timeout: Duration) -> Result<T, ConnectFailure> {
        let end = deadline(timeout);
        crate::block_on::until(end, &mut self).unwrap_or(Err(ConnectFailure::Timeout(timeout)))
    }
}

impl<T> Future for Handshake<'_, T> {
    type Output = Result<T, ConnectFailure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.step.as_mut().poll(context)
    }
}

impl<T> fmt::Debug for Handshake<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").finish_non_exhaustive()
    }
}

/// Waits for the next event about `topic`.
pub(super) async fn news(live: &Live, topic: Topic) -> CmEvent {
    news_of(live, topic, |driver| driver.news().cm_inbox.take(topic)).await
}

/// A future that waits for news about a topic, until it is dropped.
struct Waits<'a> {
    live: &'a Live,
    topic: Topic,
    future: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        drop(self.live.wakes.leave_cm(self.topic, self.future));
    }
}

/// Waits until `look` finds what the caller waits for, and looks at each event about `topic` (see
/// [`crate::wakes`]).
pub(super) async fn news_of<T>(
    live: &Live,
    topic: Topic,
    mut look: impl FnMut(&mut Driver) -> Option<T>,
) -> T {
    let waits = Waits { live, topic, future: live.wakes.new_future() };
    poll_fn(|context| {
        let _here = live.wakes.here();
        let mut driver = live.lock();
        live.progress(&mut driver);
        driver.dispatch_events();
        if let Some(found) = look(&mut driver) {
            return Poll::Ready(found);
        }
        // Before the lock is released: news comes up under it, so none is missed.
        let before = live.wakes.wait_for_cm(topic, waits.future, context.waker());
        drop(driver);
        drop(before);
        live.background.take_over();
        Poll::Pending
    })
    .await
}

/// The text in private data, without its padding.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
