//! The thread that lets other nodes in, and connects to those that the replica wants.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use remora::connection::arrivals::{Arrivals, Ended, HalfOpen};
use remora::nic::Access;
use remora::{
    ConnectFailure, Connection, ConnectionParams, Handshake, IncomingConnection, Listener,
    MemoryRegion, QueuePair,
};
use remora_store::replica::NodeId;

use crate::group::{Group, GroupState};
use crate::link::{LINKS_MAX, Link, parts};
use crate::refusals::Peer;
use crate::wire::{Hello, Welcome};

/// How often links are looked after.
const TICK: Duration = Duration::from_millis(20);
/// How long after a failure a node is called again.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a node may take to answer a call.
const CALL: Duration = Duration::from_secs(2);
/// The wait for an acknowledge: 4.096 µs · 2^15 = 0.13 s. With the retries, a node on another
/// machine that has gone is found out within a second.
const ACK_TIMEOUT: u8 = 15;

/// What the thread works with.
pub(crate) struct Door {
    pub(crate) group: Arc<Group>,
    pub(crate) listener: Listener,
}

/// A node that is being called.
struct Call {
    to: NodeId,
    epoch: u32,
    since: Instant,
    parts: (QueuePair, MemoryRegion),
    step: Handshake<'static, Connection>,
}

/// A node that is being let in: who, and over which queue pair.
#[derive(Debug)]
struct Guest {
    node: NodeId,
    qpn: u32,
}

impl Door {
    /// Serves until the node stops.
    pub(crate) fn run(self) {
        let mut arrivals = Arrivals::new(&self.listener);
        let (mut calls, mut ended) = (Vec::new(), Vec::new());
        while !self.group.is_stopping() {
            let nap = arrivals.nap(TICK);
            let step = poll_fn(|context| {
                // Under the lock, so that no queue pair gets ready behind a fence.
                let mut state = self.group.lock();
                let answer = |incoming, _| self.answer(&mut state, incoming);
                let more = arrivals.poll(context, LINKS_MAX, answer, &mut ended);
                for end in ended.drain(..) {
                    arrive(&self.group, &mut state, end);
                }
                self.receive(&mut state);
                self.begin_calls(&mut state, &mut calls);
                self.go_on(&mut state, context, &mut calls);
                state.carry_out(&self.group);
                state.door = Some(context.waker().clone());
                if self.group.is_stopping() { Poll::Ready(()) } else { more }
            });
            remora::wait_for(step, nap);
            self.look_after();
        }
    }

    fn params(&self) -> ConnectionParams {
        ConnectionParams::new(self.group.device.info().mtu)
            .access(Access::REMOTE_READ | Access::REMOTE_WRITE)
            .timeout(ACK_TIMEOUT)
    }

    /// Answers a node that connects; `None` if it is refused.
    fn answer(
        &self,
        state: &mut GroupState,
        incoming: IncomingConnection,
    ) -> Option<HalfOpen<Guest>> {
        let (hello, parts) = match self.admit(state, &incoming) {
            Ok(admitted) => admitted,
            Err(reason) => {
                let host = incoming.peer().ip();
                state.note_refusal(Peer::Host(host), &format!("{host} is not let in: {reason}"));
                incoming.reject(&reason);
                return None;
            }
        };
        // A new connection ends the one before, and what that was to bring does not come over it.
        state.lose(&self.group, hello.node);
        state.carry_out(&self.group);
        let queue_pair = parts.0.clone();
        let guest = Guest { node: hello.node, qpn: queue_pair.qpn() };
        state.links.insert(hello.node, Link::new(hello.epoch, parts, hello.region));
        let welcome = Welcome { region: self.group.remote() };
        let peer = incoming.peer();
        let step = incoming.accept(queue_pair, &welcome.to_bytes(), &self.params());
        Some(HalfOpen { peer, about: guest, step })
    }

    fn admit(
        &self,
        state: &GroupState,
        incoming: &IncomingConnection,
    ) -> Result<(Hello, (QueuePair, MemoryRegion)), String> {
        let hello = Hello::parse(incoming.private_data()).map_err(|error| error.to_string())?;
        let ours = self.group.remote().len;
        if !self.group.options.token.matches(Some(&hello.token)) {
            return Err("it is of another group: its token is another one".to_owned());
        }
        let me = self.group.options.me;
        if hello.to != me {
            return Err(format!("it calls {}, and this is {me}, at the same address", hello.to));
        }
        if hello.region.len != ours {
            return Err(format!("its ring is of {} bytes, and ours of {ours}", hello.region.len));
        }
        if let Some(reason) = state.refusal() {
            return Err(reason.to_owned());
        }
        if hello.epoch < state.replica.epoch() {
            return Err(format!("epoch {} is over", hello.epoch));
        }
        if state.links.len() >= LINKS_MAX && !state.links.contains_key(&hello.node) {
            return Err("there are too many nodes".to_owned());
        }
        Ok((hello, parts(&self.group.domain, &self.group.queues)?))
    }

    /// Posts the receive requests of queue pairs that are ready for them.
    fn receive(&self, state: &mut GroupState) {
        let failed = state
            .links
            .iter_mut()
            .filter_map(|(node, link)| link.receive().err().map(|error| (*node, error)));
        for (node, error) in failed.collect::<Vec<_>>() {
            tracing::info!("the link to {node} takes no messages: {error}");
            state.lose(&self.group, node);
        }
    }

    /// Calls the nodes that are wanted, where they are known.
    fn begin_calls(&self, state: &mut GroupState, calls: &mut Vec<Call>) {
        let (now, epoch) = (Instant::now(), state.replica.epoch());
        calls.retain(|call| call.epoch == epoch);
        let due = |state: &GroupState, calls: &[Call], node: &NodeId| {
            let wanted = state.wanted[node];
            wanted.epoch == epoch
                && wanted.not_before.is_none_or(|at| now >= at)
                && calls.iter().all(|call| call.to != *node)
        };
        for node in state.wanted.keys().copied().collect::<Vec<_>>() {
            if !due(state, calls, &node) {
                continue;
            }
            let Some(address) = state.addresses.get(&node).map(|at| at.card) else { continue };
            let parts = match parts(&self.group.domain, &self.group.queues) {
                Ok(parts) => parts,
                Err(error) => {
                    tracing::warn!("{node} cannot be called: {error}");
                    state.want(node, Some(now + CALL));
                    continue;
                }
            };
            let region = self.group.remote();
            let (me, token) = (self.group.options.me, self.group.options.token);
            let hello = Hello { node: me, to: node, epoch, region, token };
            let device = &self.group.device;
            let step = device.connect(parts.0.clone(), address, &hello.to_bytes(), &self.params());
            calls.push(Call { to: node, epoch, since: now, parts, step });
        }
    }

    /// Looks which calls were answered.
    fn go_on(&self, state: &mut GroupState, context: &mut Context<'_>, calls: &mut Vec<Call>) {
        let mut at = 0;
        while let Some(call) = calls.get_mut(at) {
            let answer = match Pin::new(&mut call.step).poll(context) {
                Poll::Ready(answer) => answer,
                Poll::Pending if call.since.elapsed() > CALL => Err(ConnectFailure::Timeout(CALL)),
                Poll::Pending => {
                    at += 1;
                    continue;
                }
            };
            let call = calls.swap_remove(at);
            if let Err(reason) = self.connected(state, &call, answer) {
                let what = format!("{} is not reached: {reason}", call.to);
                state.note_refusal(Peer::Node(call.to), &what);
                state.want(call.to, Some(Instant::now() + AGAIN));
            }
        }
    }

    /// A call was answered.
    fn connected(
        &self,
        state: &mut GroupState,
        call: &Call,
        answer: Result<Connection, ConnectFailure>,
    ) -> Result<(), String> {
        let connection = answer.map_err(|error| error.to_string())?;
        let welcome = Welcome::parse(connection.private_data()).map_err(|e| e.to_string())?;
        if welcome.region.len != self.group.remote().len {
            return Err(format!("its region is of {} bytes", welcome.region.len));
        }
        let mut link = Link::new(call.epoch, call.parts.clone(), welcome.region);
        link.receive().map_err(|error| error.to_string())?;
        link.keep(connection);
        state.wanted.remove(&call.to);
        state.links.insert(call.to, link);
        state.refusals.has_opened(Peer::Node(call.to));
        state.replica.handle_connected(call.to);
        Ok(())
    }

    /// Ends the links whose peers have said good-bye.
    fn look_after(&self) {
        let mut state = self.group.lock();
        let over = state.links.iter().filter(|(_, link)| link.is_over());
        for node in over.map(|(node, _)| *node).collect::<Vec<_>>() {
            state.lose(&self.group, node);
        }
        state.carry_out(&self.group);
    }
}

/// A node has completed its connection, or has not.
fn arrive(group: &Group, state: &mut GroupState, end: Ended<Guest>) {
    let Guest { node, qpn } = end.about;
    let Some(link) = state.links.get_mut(&node).filter(|link| link.qpn() == qpn) else { return };
    match end.connection {
        Ok(connection) => {
            link.keep(connection);
            state.refusals.has_opened(Peer::Node(node));
            state.refusals.has_opened(Peer::Host(end.peer.ip()));
        }
        Err(error) => {
            tracing::debug!("{node} does not come: {error}");
            state.lose(group, node);
        }
    }
}
