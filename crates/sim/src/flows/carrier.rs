//! What carries flows: the hosts of a part of a cluster on their network, as [`Share`] needs them.
//!
//! [`Share`]: super::share::Share

use remora_nic::SendProgress;
use remora_nic::queue::Status;

use super::cluster::ClusterError;
use super::report::Outcome;
use super::shared::Shared;
use crate::net::{Net, Ps};

/// Why a carrier has stopped before the end that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// An alarm has expired.
    Alarm,
    /// There is [`Carrier::news`].
    News,
}

/// What has become of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// It is at its target, `host`, which waits for it.
    Arrived { host: u32, flow: u32 },
    /// Its source, `host`, has its last acknowledge.
    Ended { host: u32, flow: u32 },
    /// It has failed.
    Failed { flow: u32, status: Status },
}

/// The hosts of one part, on their network.
pub(super) trait Carrier<'a>: Sized {
    /// Part `own`'s hosts, with what they need for the flows that begin or end there.
    fn new(shared: &'a Shared<'a>, own: u8) -> Result<Self, ClusterError>;

    /// Joins the ends of the flows. All parts have been made.
    fn connect(&mut self);

    /// The network.
    fn net(&mut self) -> &mut Net;

    /// The moment of the next event; [`NEVER`](crate::net::time::NEVER) if there is none.
    fn next_at(&mut self) -> Ps;

    /// Makes [`Turn::Alarm`] happen at a moment.
    fn alarm_at(&mut self, at: Ps);

    /// Begins a flow that is no wait, whose source is here.
    fn begin(&mut self, flow: usize);

    /// What a flow that has begun here waits for.
    fn progress(&mut self, flow: usize) -> SendProgress;

    /// Runs until something is to be told, or until `end`: then `None`.
    fn step_until(&mut self, end: Ps) -> Option<Turn>;

    /// What has become of flows. The caller takes it out.
    fn news(&mut self) -> &mut Vec<News>;

    /// Reports what has arrived, and when by the network's clock, the trace, and what was sent
    /// again.
    fn finish(&mut self, outcome: &mut Outcome);
}
