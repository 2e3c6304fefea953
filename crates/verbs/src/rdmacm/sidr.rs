//! Datagram services: asking which queue pair serves, and answering (SIDR, service id resolution).

use std::sync::Arc;

use remora::nic::cm::message::{SidrRep, SidrStatus};
use remora::nic::cm::{Resolution, ResolveError, ResolveRequest, SidrAnswer, SidrError};

use super::agreement::{service, told};
use super::objects::{Id, Param, Stage};
use super::watch::follow;
use super::{EINVAL, EIO, ENOMEM, Errno, Result, address, manager, queue_pair};
use crate::abi::rdma_cma::*;

impl From<ResolveError> for Errno {
    fn from(error: ResolveError) -> Errno {
        match error {
            ResolveError::TooMany => ENOMEM,
            ResolveError::Gone => EIO,
            ResolveError::PrivateData(_) => EINVAL,
        }
    }
}

impl From<SidrError> for Errno {
    fn from(error: SidrError) -> Errno {
        if error == SidrError::Gone { EIO } else { EINVAL }
    }
}

/// Asks the peer which queue pair serves the service.
pub(super) fn ask(id: &Arc<Id>, private_data: &[u8]) -> Result<()> {
    if id.lock().stage != Stage::RouteResolved {
        return Err(EINVAL);
    }
    let card = id.card()?;
    let told = told(id)?;
    let Some(route) = address::look_again(id)? else {
        id.lock().stage = Stage::Connecting;
        manager::push(id, RDMA_CM_EVENT_UNREACHABLE, |news| {
            news.status = status_code(SidrStatus::Unsupported);
        });
        return Ok(());
    };
    let mut state = id.lock();
    let data = [&state.connect_data, private_data].concat();
    let port = state.remote.map_or(0, |remote| remote.port());
    state.stage = Stage::Connecting;
    drop(state);
    let request = ResolveRequest {
        remote: route.peer,
        service: service(id.space, port),
        local_port: told.source.port(),
        told: Some(told),
        private_data: &data,
    };
    let mut locked = card.lock();
    let question = locked.commands().resolve_sidr(request)?;
    id.lock().sidr = Some(question);
    manager::current().tables().questions.insert((card.index, question), id.clone());
    locked.kick();
    drop(locked);
    follow(id);
    tracing::debug!(peer = %route.peer, port, "asks for a datagram service");
    Ok(())
}

/// Handles the peer's answer.
pub(super) fn on_answer(id: &Arc<Id>, answer: &Resolution) {
    let mut state = id.lock();
    state.sidr = None;
    let (route, tos) = (state.route, state.tos);
    let success = answer.status == SidrStatus::Success;
    if success {
        state.stage = Stage::Connected;
    }
    drop(state);
    let mut param = rdma_ud_param::zeroed();
    if let Some(route) = route {
        param.ah_attr = queue_pair::address_vector(route.peer, tos);
    }
    param.qp_num = answer.qpn;
    param.qkey = answer.qkey;
    let kind = match success {
        true => RDMA_CM_EVENT_ESTABLISHED,
        false => RDMA_CM_EVENT_UNREACHABLE,
    };
    manager::push(id, kind, |news| {
        news.status = status_code(answer.status);
        news.param = Param::Datagram(param);
        news.private_data = answer.private_data.clone();
    });
}

/// The status's number in the message.
fn status_code(status: SidrStatus) -> i32 {
    i32::from(status.code())
}

fn reply(id: &Arc<Id>, answer: SidrAnswer<'_>) -> Result<()> {
    let card = id.card()?;
    let mut locked = card.lock();
    let question = id.lock().sidr.take().ok_or(EINVAL)?;
    locked.commands().sidr_reply(question, answer)?;
    locked.kick();
    Ok(())
}

/// Answers with the id's queue pair, or with the one that the program names.
pub(super) fn accept(id: &Arc<Id>, param: &rdma_conn_param, data: &[u8]) -> Result<()> {
    if id.lock().stage != Stage::Connecting {
        return Err(EINVAL);
    }
    let (qpn, _) = queue_pair::number(id, param);
    let status = SidrStatus::Success;
    reply(id, SidrAnswer { status, qpn, qkey: RDMA_UDP_QKEY, private_data: data })?;
    id.lock().stage = Stage::Connected;
    Ok(())
}

/// Refuses a question.
pub(super) fn reject(id: &Arc<Id>, data: &[u8]) -> Result<()> {
    let data = data.get(..data.len().min(SidrRep::PRIVATE_DATA)).unwrap_or_default();
    let status = SidrStatus::Rejected;
    reply(id, SidrAnswer { status, qpn: 0, qkey: 0, private_data: data })
}
