//! A client's way through a cluster: to the primary that has a key, and to the next one if that
//! goes.
//!
//! A change that failed on its way may have taken effect. It is made again under the number that it
//! had, so that it takes effect once: see [`crate::request`]. The number belongs to a group. Where
//! the key has gone to another one meanwhile, nobody can tell, and the client is told so.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;
use std::time::{Duration, Instant};

use remora::channel::deadline;
use remora::kernel::{CallFailure, CallStatus};

use super::error::StoreError;
use super::operations::{self, Caller};
use crate::front::slots::slot_of;
use crate::log::Position;
use crate::request::RequestId;
use crate::tablespace::TablespaceId;
use crate::way::call::{
    ANSWER_LEN, AnswerHead, Call, KEYS_ON_THEIR_WAY, Operation, Refused, WITH_HEADS,
};
use crate::way::map::ClusterMap;

/// How long a node may take for the first attempt at a call. If that was too short, the next one
/// may take twice as long, up to a limit.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
const ATTEMPT_MAX: Duration = Duration::from_secs(8);
/// How long a node may take to tell the map.
const MAP_ATTEMPT: Duration = Duration::from_millis(500);
/// The cursor of a scan that goes on in the next group.
const NEXT_GROUP: u64 = u64::MAX;

/// The nodes of a cluster, as a client calls them.
pub(super) trait Fleet {
    /// Calls a node about tablespace 0, and connects to it first if need be. What was called breaks
    /// off where the node takes longer than `within`.
    async fn call_at(
        &mut self,
        to: (SocketAddr, Duration),
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError>;

    /// Waits a moment.
    async fn pause(&mut self);
}

/// What is known of the cluster by a client that makes one call at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Route {
    /// Where the client came in.
    home: Option<SocketAddr>,
    map: ClusterMap,
    /// Of each group: under which numbers it knows this client.
    identities: BTreeMap<String, Identity>,
    /// How often the map was asked for.
    looks: usize,
    /// The scan of all groups that is under way, or was last.
    walk: Option<Box<Walk>>,
}

/// A scan of one group after the other.
#[derive(Clone, Debug)]
struct Walk {
    /// All groups, by their names, and up to where each had handed keys to others before.
    handed: BTreeMap<String, u64>,
    /// The group that is scanned, and its primary.
    group: String,
    primary: Option<SocketAddr>,
}

impl Walk {
    /// The group that comes after the one that is scanned.
    fn next(&self) -> Option<&String> {
        let after = (Bound::Excluded(&self.group), Bound::Unbounded);
        self.handed.range::<String, _>(after).next().map(|(name, _)| name)
    }
}

/// Under which number a group is to know the next request.
#[derive(Clone, Copy, Debug)]
struct Identity {
    next: RequestId,
    /// A request was sent under this number, and nobody knows whether it has taken effect, or will.
    /// So no other one comes under it: the group would take it for that one.
    is_open: bool,
}

/// A call that is being made.
struct Making<'a> {
    operation: Operation,
    call: &'a Call<'a>,
    began: Instant,
    timeout: Duration,
    attempt: Duration,
    /// The group in which an attempt may have taken effect.
    doubt: Option<String>,
    reason: String,
    is_asking: bool,
}

impl<'a> Making<'a> {
    fn new(operation: Operation, call: &'a Call<'a>, timeout: Duration) -> Making<'a> {
        Making {
            operation,
            call,
            began: Instant::now(),
            timeout,
            attempt: FIRST_ATTEMPT,
            doubt: None,
            reason: "no group has the key's slot".to_owned(),
            is_asking: false,
        }
    }

    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }

    fn gives_up(&self) -> StoreError {
        let reason = self.reason.clone();
        match self.doubt {
            Some(_) => StoreError::Doubt { reason },
            None => StoreError::NoPrimary { waited: self.timeout, reason },
        }
    }
}

/// What is to be done after an attempt.
enum Next {
    Fail,
    /// The map is old, or the group has no primary at the moment.
    Look,
    /// The group that the slot goes to has the key.
    Ask,
    Wait,
    /// The group has forgotten this client.
    Rename,
}

/// What follows from a failure, and whether the call may have taken effect.
fn next(error: &StoreError) -> (Next, bool) {
    match error {
        StoreError::Refused(Refused::Elsewhere) => (Next::Look, false),
        StoreError::Refused(Refused::Asks) => (Next::Ask, false),
        StoreError::Refused(Refused::OnItsWay) => (Next::Wait, false),
        StoreError::Refused(Refused::Doubt) => (Next::Look, true),
        StoreError::Refused(Refused::Forgotten) => (Next::Rename, false),
        // The node's kernels have ended, or do not run yet.
        StoreError::NoKernels => (Next::Look, false),
        StoreError::Call(CallFailure::Status(CallStatus::UNLOADED | CallStatus::UNAVAILABLE)) => {
            (Next::Look, true)
        }
        StoreError::Call(CallFailure::Status(_)) => (Next::Fail, false),
        // It was not sent.
        StoreError::Call(CallFailure::Full(_)) => (Next::Wait, false),
        StoreError::Call(CallFailure::TooLong { .. }) => (Next::Fail, false),
        StoreError::Call(CallFailure::Answer | CallFailure::Room(_)) => (Next::Fail, true),
        StoreError::Call(_) => (Next::Look, true),
        StoreError::Connect(_) => (Next::Look, false),
        _ => (Next::Fail, false),
    }
}

impl Route {
    /// Where a group stands in the map.
    fn place_of(&self, name: &str) -> Option<usize> {
        self.map.groups.iter().position(|group| group.name == name)
    }

    /// The name of a group that is not known yet.
    fn group_beside(&self, is_known: impl Fn(&String) -> bool) -> Option<String> {
        let mut groups = self.map.groups.iter();
        groups.find(|group| !is_known(&group.name)).map(|group| group.name.clone())
    }
}

/// A client's way, and the nodes that it leads to.
#[derive(Debug)]
pub(super) struct Routed<F> {
    pub(super) fleet: F,
    pub(super) route: Route,
    pub(super) timeout: Duration,
}

impl<F: Fleet> Caller for Routed<F> {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let call = &Call { tablespace: 0, ..*call };
        match operation {
            Operation::Scan => self.scan(call, out).await,
            Operation::Flush => self.flush(call, out).await,
            // Any node answers the same, or for itself.
            Operation::Info | Operation::Tablespace | Operation::Create | Operation::Drop => {
                let home = self.route.home.ok_or_else(StoreError::answer)?;
                self.fleet.call_at((home, self.timeout), operation, call, out).await
            }
            _ => self.keyed(operation, call, out).await,
        }
    }

    fn tablespace(&self) -> TablespaceId {
        TablespaceId(0)
    }
}

/// Calls to one node.
struct At<'f, F> {
    fleet: &'f mut F,
    to: (SocketAddr, Duration),
}

impl<F: Fleet> Caller for At<'_, F> {
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        self.fleet.call_at(self.to, operation, call, out).await
    }

    fn tablespace(&self) -> TablespaceId {
        TablespaceId(0)
    }
}

impl<F: Fleet> Routed<F> {
    /// A way that begins at a node.
    ///
    /// # Errors
    /// The node does not tell the map.
    pub(super) async fn begin(
        mut fleet: F,
        home: SocketAddr,
        timeout: Duration,
    ) -> Result<Routed<F>, StoreError> {
        let map = operations::map(&mut At { fleet: &mut fleet, to: (home, timeout) }).await?;
        let route = Route { home: Some(home), map, ..Route::default() };
        Ok(Routed { fleet, route, timeout })
    }

    /// The primary that has a key, as far as is known.
    pub(super) fn primary_of(&self, key: &[u8]) -> Option<SocketAddr> {
        let owner = self.route.map.owner(slot_of(key))?;
        self.route.map.groups.get(owner.group)?.primary
    }

    /// Calls the primary that has the call's key.
    async fn keyed(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let (from, slot) = (out.len(), slot_of(call.key));
        // That of a call that was given up, or dropped.
        self.route.identities.retain(|_, identity| !identity.is_open);
        let mut making = Making::new(operation, call, self.timeout);
        loop {
            let owner = self.route.map.owner(slot);
            let group = match making.is_asking {
                true => owner.and_then(|owner| owner.to),
                false => owner.map(|owner| owner.group),
            };
            let Err(error) = self.attempt(&mut making, group, out).await else { return Ok(()) };
            out.truncate(from);
            self.go_on(&mut making, error, group).await?;
        }
    }

    /// Makes one attempt at a call, in a group.
    async fn attempt(
        &mut self,
        making: &mut Making<'_>,
        group: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let elsewhere = || StoreError::Refused(Refused::Elsewhere);
        let group = group.and_then(|group| self.route.map.groups.get(group));
        let Some((name, Some(at))) = group.map(|group| (group.name.clone(), group.primary)) else {
            return Err(elsewhere());
        };
        if making.doubt.as_ref().is_some_and(|before| *before != name) {
            making.reason = "its key has gone to another group meanwhile".to_owned();
            return Err(making.gives_up());
        }
        let within = making.attempt.min(making.left());
        let request = match making.operation.is_of_a_key() {
            true => Some(self.identity(&name, (at, within)).await?),
            false => None,
        };
        if request.is_some() {
            self.set_open(&name, true);
        }
        let call = Call { request, is_asking: making.is_asking, ..*making.call };
        let done = self.fleet.call_at((at, within), making.operation, &call, out).await;
        if let Err(error) = &done
            && making.operation.changes()
            && next(error).1
        {
            making.doubt = Some(name.clone());
        }
        match &done {
            Ok(()) => self.use_up(&name),
            Err(_) if making.doubt.is_none() => self.set_open(&name, false),
            Err(_) => {}
        }
        done
    }

    /// Under which number a group is to know the next request.
    async fn identity(
        &mut self,
        name: &str,
        to: (SocketAddr, Duration),
    ) -> Result<RequestId, StoreError> {
        if let Some(known) = self.route.identities.get(name) {
            return Ok(known.next);
        }
        let mut answer = Vec::new();
        let asked = self.fleet.call_at(to, Operation::Lease, &Call::default(), &mut answer).await;
        asked.map_err(|error| match next(&error).1 {
            // Nothing was changed.
            true => StoreError::Refused(Refused::Elsewhere),
            false => error,
        })?;
        let (head, _) = AnswerHead::parse(&answer).ok_or_else(StoreError::answer)?;
        let (client, since) = (random()?, Position::from_number(head.version));
        let next = RequestId { client, sequence: 1, since };
        self.route.identities.insert(name.to_owned(), Identity { next, is_open: false });
        Ok(next)
    }

    /// The request that the group was asked for has taken effect.
    fn use_up(&mut self, name: &str) {
        if let Some(identity) = self.route.identities.get_mut(name) {
            identity.next.sequence += 1;
            identity.is_open = false;
        }
    }

    fn set_open(&mut self, name: &str, is_open: bool) {
        if let Some(identity) = self.route.identities.get_mut(name) {
            identity.is_open = is_open;
        }
    }

    /// Gets ready for the next attempt.
    async fn go_on(
        &mut self,
        making: &mut Making<'_>,
        error: StoreError,
        group: Option<usize>,
    ) -> Result<(), StoreError> {
        let (next, _) = next(&error);
        let group = group.and_then(|group| self.route.map.groups.get(group));
        let (name, told_by) = group.map(|it| (it.name.clone(), it.primary)).unwrap_or_default();
        match next {
            Next::Fail => return Err(error),
            Next::Rename if making.doubt.is_some() => {
                making.reason = error.to_string();
                return Err(making.gives_up());
            }
            Next::Rename => {
                self.route.identities.remove(&name);
            }
            Next::Look | Next::Ask | Next::Wait => {}
        }
        making.reason = error.to_string();
        making.is_asking = matches!(next, Next::Ask);
        if making.is_asking {
            // The primary that says so has looked whether it knows the request.
            making.doubt = None;
        }
        if error.is_late() {
            making.attempt = ATTEMPT_MAX.min(2 * making.attempt);
        }
        if making.left().is_zero() {
            return Err(making.gives_up());
        }
        match next {
            Next::Ask => self.look(told_by, making.left()).await,
            Next::Look => {
                self.fleet.pause().await;
                self.look(None, making.left()).await;
            }
            _ => self.fleet.pause().await,
        }
        Ok(())
    }

    /// Asks a node for the map: this one, or one after the other until one answers.
    async fn look(&mut self, first: Option<SocketAddr>, left: Duration) {
        let route = &mut self.route;
        let groups = route.map.groups.iter();
        let all = groups.flat_map(|group| group.primary.iter().chain(&group.nodes)).copied();
        let all: Vec<_> = all.chain(route.home).collect::<BTreeSet<_>>().into_iter().collect();
        route.looks += 1;
        let start = route.looks % all.len().max(1);
        let turned = all[start..].iter().chain(&all[..start]).copied();
        let end = deadline(left);
        for at in first.into_iter().chain(turned) {
            let within = MAP_ATTEMPT.min(end.saturating_duration_since(Instant::now()));
            if within.is_zero() {
                return;
            }
            let mut node = At { fleet: &mut self.fleet, to: (at, within) };
            match operations::map(&mut node).await {
                Ok(told) => return self.route.map.merge(told),
                Err(error) => tracing::debug!("{at} does not tell the map: {error}"),
            }
        }
    }

    /// Scans one group after the other. No key may change its group before the end, since some
    /// would be missing then, or come twice.
    async fn scan(&mut self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let from = out.len();
        let mut walk = match (call.argument, &self.route.walk) {
            (0, _) => Box::new(self.begin_walk().await?),
            (_, Some(walk)) => walk.clone(),
            (_, None) => return Err(StoreError::Reordered),
        };
        let mut call = *call;
        if call.argument == NEXT_GROUP {
            call.argument = 0;
            walk.group = walk.next().ok_or_else(StoreError::answer)?.clone();
            walk.primary = None;
        }
        let (head, primary) = self.scan_group(&walk.group, walk.primary, &call, out).await?;
        if walk.handed.get(&walk.group) != Some(&head.expires_ms) {
            return Err(StoreError::Moved);
        }
        walk.primary = primary;
        if head.version == 0 && walk.next().is_some() {
            let head = AnswerHead { version: NEXT_GROUP, ..head };
            out[from..from + ANSWER_LEN].copy_from_slice(&head.to_bytes());
        } else if head.version == 0 && self.survey().await? != walk.handed {
            return Err(StoreError::Moved);
        }
        self.route.walk = Some(walk);
        Ok(())
    }

    async fn begin_walk(&mut self) -> Result<Walk, StoreError> {
        let handed = self.survey().await?;
        let group = handed.keys().next().ok_or_else(StoreError::answer)?.clone();
        Ok(Walk { handed, group, primary: None })
    }

    /// Asks all groups up to where each has handed keys to others.
    async fn survey(&mut self) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut handed = BTreeMap::new();
        let probe = Call { flags: WITH_HEADS, limit: 1, ..Call::default() };
        while let Some(name) = self.route.group_beside(|name| handed.contains_key(name)) {
            let (head, primary) = self.scan_group(&name, None, &probe, &mut Vec::new()).await?;
            // A primary that has handed keys to a group has a map that has this group.
            self.look(primary, self.timeout).await;
            handed.insert(name, head.expires_ms);
        }
        Ok(handed)
    }

    /// Scans a group, whose primary has to be the one that it was `before`. Returns the head of the
    /// answer, and who has answered.
    async fn scan_group(
        &mut self,
        name: &str,
        before: Option<SocketAddr>,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(AnswerHead, Option<SocketAddr>), StoreError> {
        let from = out.len();
        let mut making = Making::new(Operation::Scan, call, self.timeout);
        let primary = loop {
            // The map may have changed meanwhile.
            let number = self.route.place_of(name).ok_or(StoreError::Moved)?;
            let primary = self.route.map.groups[number].primary;
            if before.is_some_and(|before| primary.is_some_and(|now| now != before)) {
                return Err(StoreError::Reordered);
            }
            match self.attempt(&mut making, Some(number), out).await {
                Ok(()) => break primary,
                Err(error) => {
                    out.truncate(from);
                    self.go_on(&mut making, error, Some(number)).await?;
                }
            }
        };
        let (head, _) = AnswerHead::parse(&out[from..]).ok_or_else(StoreError::answer)?;
        match head.expires_ms {
            KEYS_ON_THEIR_WAY => Err(StoreError::Moved),
            _ => Ok((head, primary)),
        }
    }

    /// Flushes one group after the other.
    async fn flush(&mut self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), StoreError> {
        let from = out.len();
        let mut flushed = BTreeSet::new();
        // The map may change meanwhile.
        while let Some(name) = self.route.group_beside(|name| flushed.contains(name)) {
            let mut making = Making::new(Operation::Flush, call, self.timeout);
            while let Some(number) = self.route.place_of(&name) {
                out.truncate(from);
                let done = self.attempt(&mut making, Some(number), out).await;
                let Err(error) = done else { break };
                // It has no number, so nobody would know it again.
                if making.doubt.is_some() {
                    making.reason = error.to_string();
                    return Err(making.gives_up());
                }
                self.go_on(&mut making, error, Some(number)).await?;
            }
            flushed.insert(name);
        }
        Ok(())
    }
}

/// A random number.
fn random() -> Result<u64, StoreError> {
    let (mut bytes, flags) = ([0; 8], rustix::rand::GetRandomFlags::empty());
    rustix::rand::getrandom(&mut bytes, flags).map_err(StoreError::Random)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
