//! The ids of the process by the numbers that its cards have for their connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remora::nic::cm::message::TransportService;
use remora::nic::cm::{ConnId, ListenerId, SidrId};

use super::objects::{Id, News};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::process;

/// Ports for ids whose program asks for none in particular.
const PORTS: std::ops::Range<u32> = 32_768..61_000;

/// Ids by the cards' numbers, and the ports in use.
#[derive(Debug, Default)]
pub(super) struct Manager {
    tables: Mutex<Tables>,
    pub(super) started: Mutex<bool>,
    /// Listeners of this machine that have answered, and the time of the last answer.
    answered: Mutex<HashMap<SocketAddr, Instant>>,
}

/// How long a listener that has answered may be gone before it listens again.
const MAY_BE_AWAY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) connections: HashMap<(usize, ConnId), Arc<Id>>,
    pub(super) listeners: HashMap<(usize, ListenerId), Arc<Id>>,
    pub(super) questions: HashMap<(usize, SidrId), Arc<Id>>,
    next_port: u32,
}

impl Manager {
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The manager of this process.
pub(super) fn current() -> Arc<Manager> {
    process::current().shared::<Manager>()
}

/// Records that a connection with a listener is established.
pub(super) fn has_answered(id: &Id) {
    let (remote, announced) = {
        let state = id.lock();
        (state.remote, state.announced)
    };
    let manager = current();
    let mut answered = manager.answered.lock().unwrap_or_else(PoisonError::into_inner);
    answered.retain(|_, at| at.elapsed() < MAY_BE_AWAY);
    if let Some(remote) = remote.filter(|_| announced) {
        answered.insert(remote, Instant::now());
    }
}

/// Has a listener of this machine answered recently, in any port space?
pub(super) fn has_just_answered(remote: SocketAddr) -> bool {
    let manager = current();
    let answered = manager.answered.lock().unwrap_or_else(PoisonError::into_inner);
    answered.get(&remote).is_some_and(|at| at.elapsed() < MAY_BE_AWAY)
}

/// A port to try for an id that other processes must find.
pub(super) fn some_port() -> u16 {
    let mut random = [0; 4];
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).is_err() {
        return own_port();
    }
    (PORTS.start + u32::from_ne_bytes(random) % (PORTS.end - PORTS.start)) as u16
}

/// A port for an id that connects. Only this process uses it: other processes have cards of their
/// own.
pub(super) fn own_port() -> u16 {
    let manager = current();
    let mut tables = manager.tables();
    if tables.next_port == 0 {
        tables.next_port = std::process::id().wrapping_mul(2_654_435_761);
    }
    tables.next_port = tables.next_port.wrapping_add(1);
    (PORTS.start + tables.next_port % (PORTS.end - PORTS.start)) as u16
}

/// Adds an event about an id to its channel. The id is locked until it is there, so that it does
/// not come to a channel which the id has left.
pub(super) fn push(id: &Arc<Id>, kind: rdma_cm_event_type, fill: impl FnOnce(&mut News)) {
    let mut news = News::new(id, kind);
    fill(&mut news);
    if let Some(channel) = &id.lock().channel {
        channel.push(news);
    }
}

/// The transport service of a type of queue pair.
pub(super) fn transport(qp_type: ibv_qp_type) -> TransportService {
    match qp_type {
        IBV_QPT_UC => TransportService::Uc,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => TransportService::Extended,
        _ => TransportService::Rc,
    }
}
