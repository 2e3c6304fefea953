//! What the process's ids are on its cards.

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

/// Ports for who does not ask for one.
const PORTS: std::ops::Range<u32> = 32_768..61_000;

/// The ids by what the cards call them, and the ports they have.
#[derive(Debug, Default)]
pub(super) struct Manager {
    tables: Mutex<Tables>,
    pub(super) started: Mutex<bool>,
    /// Listeners of this machine that have answered, and when.
    answered: Mutex<HashMap<SocketAddr, Instant>>,
}

/// How long a listener that has answered may be away.
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

/// This process's.
pub(super) fn current() -> Arc<Manager> {
    process::current().shared::<Manager>()
}

/// A connection with a listener stands.
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

/// Has a listener of this machine answered lately, in whatever port space?
pub(super) fn has_just_answered(remote: SocketAddr) -> bool {
    let manager = current();
    let answered = manager.answered.lock().unwrap_or_else(PoisonError::into_inner);
    answered.get(&remote).is_some_and(|at| at.elapsed() < MAY_BE_AWAY)
}

/// A port to try for an id that other processes are to find.
pub(super) fn some_port() -> u16 {
    let mut random = [0; 4];
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).is_err() {
        return own_port();
    }
    (PORTS.start + u32::from_ne_bytes(random) % (PORTS.end - PORTS.start)) as u16
}

/// A port for an id that connects. Other processes have other cards, so it need not be theirs.
pub(super) fn own_port() -> u16 {
    let manager = current();
    let mut tables = manager.tables();
    if tables.next_port == 0 {
        tables.next_port = std::process::id().wrapping_mul(2_654_435_761);
    }
    tables.next_port = tables.next_port.wrapping_add(1);
    (PORTS.start + tables.next_port % (PORTS.end - PORTS.start)) as u16
}

/// Adds an event about an id to its channel.
pub(super) fn push(id: &Arc<Id>, kind: rdma_cm_event_type, fill: impl FnOnce(&mut News)) {
    let mut news = News::new(id, kind);
    fill(&mut news);
    if let Some(channel) = id.channel() {
        channel.push(news);
    }
}

/// What kind of connection a type of queue pair asks for.
pub(super) fn transport(qp_type: ibv_qp_type) -> TransportService {
    match qp_type {
        IBV_QPT_UC => TransportService::Uc,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => TransportService::Extended,
        _ => TransportService::Rc,
    }
}
