//! Service id resolution: asking a peer, once, for the queue pair and key of a datagram service.
//!
//! The messages are SIDR_REQ and SIDR_REP of InfiniBand volume 1, chapter 12. What a resolution
//! remembers is in [`super::resolution`].

use core::net::IpAddr;
use core::time::Duration;

use rand_core::Rng;

use super::command::WideNumber;
use super::message::{INFO_LEN, Message, SidrRep, SidrReq, SidrStatus, TooLong, private_data};
use super::receive::{Admission, answer_time, who_asks};
use super::resolution::{Entry, SidrId, Stage};
use super::service::{CmaHeader, ServiceId};
use super::{Cm, CmEvent, IncomingResolution, ListenerId, Resolution, Timed};
use crate::Time;

/// A datagram service to resolve.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ResolveRequest<'a> {
    /// The peer.
    pub remote: IpAddr,
    /// The service to ask for.
    pub service: ServiceId,
    /// The port that the peer sees; used with services of the port spaces only.
    pub local_port: u16,
    /// Addresses to tell the peer, if they differ from those of the packets. The port in them
    /// replaces `local_port`.
    pub told: Option<CmaHeader>,
    /// At most 180 bytes, or 216 outside the port spaces.
    pub private_data: &'a [u8],
}

/// The answer to a resolution.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SidrAnswer<'a> {
    /// Success, or why not.
    pub status: SidrStatus,
    /// The queue pair that speaks for the service; 0 if there is none.
    pub qpn: u32,
    /// The queue key to send with.
    pub qkey: u32,
    /// At most 136 bytes.
    pub private_data: &'a [u8],
}

/// Why a resolution cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ResolveError {
    /// As many resolutions as [`CmConfig`](super::CmConfig) allows are under way.
    #[error("too many resolutions")]
    TooMany,
    /// The private data does not fit.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why a resolution cannot be answered or cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SidrError {
    /// There is no resolution with this id, or it is not of the side or stage that this needs.
    #[error("unknown resolution")]
    Unknown,
    /// The private data does not fit.
    #[error(transparent)]
    PrivateData(#[from] TooLong),
    /// The queue pair's number is none.
    #[error(transparent)]
    QpNumber(#[from] WideNumber),
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

impl Cm {
    /// Asks a peer which queue pair speaks for a datagram service. One event follows:
    /// [`CmEvent::SidrReply`] or [`CmEvent::SidrUnreachable`].
    ///
    /// # Errors
    /// [`ResolveError::TooMany`] if as many resolutions of this side as
    /// [`CmConfig`](super::CmConfig) allows are under way, [`ResolveError::PrivateData`] if the
    /// private data is too long.
    pub fn resolve_sidr(
        &mut self,
        now: Time,
        request: &ResolveRequest<'_>,
    ) -> Result<SidrId, ResolveError> {
        // As for connections: the peer of a mapped address answers from that of IPv4.
        let request = &ResolveRequest { remote: request.remote.to_canonical(), ..request.clone() };
        if self.resolutions.asking >= self.config.max_resolutions {
            return Err(ResolveError::TooMany);
        }
        let private_data = match request.service.port() {
            Some(_) => {
                let ours = || self.cma_header(request.remote, request.local_port);
                request.told.unwrap_or_else(ours).prepend(request.private_data)?
            }
            None => private_data(request.private_data)?,
        };
        let id = self.free_id();
        let transaction_id = self.rng.next_u64();
        let (pkey, service_id) = (self.config.pkey, request.service);
        let question = Message::from(SidrReq { request_id: id, pkey, service_id, private_data });
        let mad = Box::new(question.to_mad(transaction_id));
        self.transmit(request.remote, mad.clone());
        let stage = Stage::Asking { request: mad, retries_left: self.config.max_retries };
        self.resolutions.asking += 1;
        self.insert(id, request.remote, transaction_id, request.service, stage);
        self.set_resolution_deadline(id, now + self.sidr_wait());
        Ok(SidrId(id))
    }

    /// Answers a peer's resolution.
    ///
    /// # Errors
    /// [`SidrError::QpNumber`] if the queue pair's number is wider than 24 bits;
    /// [`SidrError::PrivateData`] if the private data is longer than [`SidrRep::PRIVATE_DATA`];
    /// [`SidrError::Unknown`] if no resolution of a peer with this id waits for an answer any more.
    pub fn sidr_reply(
        &mut self,
        now: Time,
        sidr: SidrId,
        answer: &SidrAnswer<'_>,
    ) -> Result<(), SidrError> {
        WideNumber::refuse(answer.qpn)?;
        let private_data = private_data(answer.private_data)?;
        let entry = self.resolutions.entries.get_mut(&sidr.0).ok_or(SidrError::Unknown)?;
        let Stage::Asked { request_id } = entry.stage else { return Err(SidrError::Unknown) };
        let rep = SidrRep {
            qpn: answer.qpn,
            qkey: answer.qkey,
            private_data,
            ..sidr_answer(request_id, entry.service, answer.status)
        };
        let mad = Box::new(Message::from(rep).to_mad(entry.transaction_id));
        entry.stage = Stage::Answered { request_id, answer: mad.clone() };
        let peer = entry.peer;
        self.resolutions.end_wait(peer);
        self.transmit(peer, mad);
        let until = now + self.patience();
        self.set_resolution_deadline(sidr.0, until);
        self.resolutions.answered.insert((until, sidr.0));
        Ok(())
    }

    /// Gives up a resolution that this side began. No event follows.
    ///
    /// # Errors
    /// [`SidrError::Unknown`] if no resolution with this id that this side began is under way.
    pub fn cancel_sidr(&mut self, sidr: SidrId) -> Result<(), SidrError> {
        let entry = self.resolutions.entries.get(&sidr.0).ok_or(SidrError::Unknown)?;
        let Stage::Asking { .. } = entry.stage else { return Err(SidrError::Unknown) };
        self.remove_resolution(sidr.0);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, now: Time, src: IpAddr, tid: u64, req: &SidrReq) {
        // The peer's address and request id name a resolution. A request with the ids of one that
        // is known is a duplicate.
        if let Some(id) = self.resolutions.by_peer.get(&(src, req.request_id)).copied() {
            return self.on_duplicate_sidr_req(src, id);
        }
        match self.admit_sidr(src, req) {
            Ok(Admission { listener, peer, told, private_data }) => {
                let id = self.free_id();
                let stage = Stage::Asked { request_id: req.request_id };
                self.insert(id, src, tid, req.service_id, stage);
                self.resolutions.by_peer.insert((src, req.request_id), id);
                self.resolutions.begin_wait(src);
                // The caller may answer as long as the peer may still ask.
                self.set_resolution_deadline(id, now + self.patience());
                self.events.push_back(CmEvent::SidrRequest(Box::new(IncomingResolution {
                    sidr: SidrId(id),
                    listener,
                    service: req.service_id,
                    peer,
                    told,
                    private_data,
                })));
            }
            // A request that is not admitted is answered at once, with the reason.
            Err(status) => {
                self.answer(src, tid, sidr_answer(req.request_id, req.service_id, status));
            }
        }
    }

    /// A duplicate is answered again with the saved answer, or dropped while the caller has not
    /// answered yet.
    fn on_duplicate_sidr_req(&mut self, src: IpAddr, id: u32) {
        self.counters.duplicates += 1;
        let entry = self.resolutions.entries.get(&id);
        if let Some(Stage::Answered { answer, .. }) = entry.map(|entry| &entry.stage) {
            let answer = answer.clone();
            self.transmit(src, answer);
        }
    }

    /// May this request become a resolution? If not, the status says why.
    fn admit_sidr(&mut self, src: IpAddr, req: &SidrReq) -> Result<Admission, SidrStatus> {
        // A service of a port space needs the address header (annex A11).
        let Some((peer, told, data)) = who_asks(src, req.service_id, &req.private_data) else {
            self.counters.invalid_cma_header += 1;
            return Err(SidrStatus::Rejected);
        };
        // A service without a listener at this address is not offered here.
        let Some(listener) = self.listener(req.service_id, told.as_ref()) else {
            self.counters.invalid_service += 1;
            return Err(SidrStatus::Unsupported);
        };
        // A service of connections has no queue pair to name.
        if !req.service_id.takes_questions() {
            self.counters.invalid_service += 1;
            return Err(SidrStatus::Unsupported);
        }
        // A peer must not make the manager remember more than its limit, nor more than its share.
        if !self.make_room_for_question(src) {
            self.counters.too_many_resolutions += 1;
            return Err(SidrStatus::NoQp);
        }
        Ok(Admission { listener, peer, told, private_data: data.to_vec() })
    }

    pub(super) fn on_sidr_rep(&mut self, src: IpAddr, rep: &SidrRep) {
        if self.questions.take(src, rep.request_id) {
            return;
        }
        let entry = self.resolutions.entries.get(&rep.request_id);
        // An answer must be to a resolution that waits for one, and come from the peer that was
        // asked; a second answer finds none.
        if !entry.is_some_and(|e| e.peer == src && matches!(e.stage, Stage::Asking { .. })) {
            return self.counters.unknown_connection += 1;
        }
        self.remove_resolution(rep.request_id);
        self.events.push_back(CmEvent::SidrReply(Box::new(Resolution {
            sidr: SidrId(rep.request_id),
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: rep.private_data.to_vec(),
        })));
    }

    pub(super) fn on_resolution_timer(&mut self, now: Time, id: u32) {
        let again = now + self.sidr_wait();
        let Some(entry) = self.resolutions.entries.get_mut(&id) else { return };
        match &mut entry.stage {
            Stage::Asking { request, retries_left } if *retries_left > 0 => {
                *retries_left -= 1;
                let (peer, request) = (entry.peer, request.clone());
                self.counters.retransmissions += 1;
                self.transmit(peer, request);
                self.set_resolution_deadline(id, again);
            }
            Stage::Asking { .. } => {
                self.counters.unreachable += 1;
                self.remove_resolution(id);
                self.events.push_back(CmEvent::SidrUnreachable { sidr: SidrId(id) });
            }
            Stage::Asked { .. } | Stage::Answered { .. } => self.remove_resolution(id),
        }
    }

    /// Makes room for a resolution of this peer: if need be, the oldest answer is forgotten, as its
    /// peer has probably received it. Returns whether there is room.
    fn make_room_for_question(&mut self, src: IpAddr) -> bool {
        let max = self.config.max_resolutions;
        if !self.resolutions.may_wait(src, max) {
            return false;
        }
        if self.resolutions.begun_by_peers() < max {
            return true;
        }
        let Some(&(_, oldest)) = self.resolutions.answered.first() else { return false };
        self.remove_resolution(oldest);
        true
    }

    /// Refuses the resolutions that a listener which ends has been asked for, and that the caller
    /// does not know of yet.
    pub(super) fn refuse_untold(&mut self, listener: ListenerId) {
        let of_it = |event: &CmEvent| match event {
            CmEvent::SidrRequest(question) if question.listener == listener => Some(question.sidr),
            _ => None,
        };
        let untold: Vec<SidrId> = self.events.iter().filter_map(of_it).collect();
        for SidrId(id) in untold {
            let Some(entry) = self.resolutions.entries.get(&id) else { continue };
            let Stage::Asked { request_id } = entry.stage else { continue };
            let no = sidr_answer(request_id, entry.service, SidrStatus::Unsupported);
            self.answer(entry.peer, entry.transaction_id, no);
            self.remove_resolution(id);
        }
    }

    fn insert(
        &mut self,
        id: u32,
        peer: IpAddr,
        transaction_id: u64,
        service: ServiceId,
        stage: Stage,
    ) {
        let deadline = Time::NEVER;
        let entry = Entry { peer, transaction_id, service, stage, deadline };
        self.resolutions.entries.insert(id, entry);
    }

    fn sidr_wait(&self) -> Duration {
        answer_time(self.config.response_timeout, 0)
    }

    /// How long a peer repeats its request, if it is as patient as this manager.
    fn patience(&self) -> Duration {
        self.sidr_wait() * (u32::from(self.config.max_retries) + 1)
    }

    fn set_resolution_deadline(&mut self, id: u32, at: Time) {
        let Some(entry) = self.resolutions.entries.get_mut(&id) else { return };
        let timer = Timed::Resolution(id);
        self.timers.remove(&(entry.deadline, timer));
        entry.deadline = at;
        if at != Time::NEVER {
            self.timers.insert((at, timer));
        }
    }

    fn remove_resolution(&mut self, id: u32) {
        if let Some(entry) = self.resolutions.remove(id) {
            self.timers.remove(&(entry.deadline, Timed::Resolution(id)));
        }
    }
}

/// An answer with only the fields that every answer has; the rest is zero.
fn sidr_answer(request_id: u32, service_id: ServiceId, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id,
        status,
        info_len: 0,
        qpn: 0,
        service_id,
        qkey: 0,
        info: [0; INFO_LEN],
        private_data: [0; SidrRep::PRIVATE_DATA],
    }
}
