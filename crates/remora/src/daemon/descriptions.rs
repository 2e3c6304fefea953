//! What a client that has taken a session over learns of its objects: where its rings are, and the
//! memory of its regions.

use std::os::fd::{AsFd, OwnedFd};

use remora_nic::Key;
use remora_nic::queue::RingInit;

use super::admission::OBJECTS;
use super::answers::may_see;
use super::clients::Then;
use super::record::Entry;
use super::server::Server;
use super::session_queues::{Queue, Region, SessionQueues};
use crate::commands::{Commands, Place};
use crate::driver::Own;
use crate::message::{Answer, Description, Object, RegionStatus, RingPlace};

/// Regions in one answer.
const PAGE: usize = 256;

/// A description, and the file of the memory that it is of.
type Described = (Description, Option<OwnedFd>);

impl Server {
    /// Describes an object of the client's session.
    pub(super) fn describe(&mut self, number: u32, object: Object) -> Then {
        let described = self.with(number, |driver, slot| describe(driver, slot, object)).flatten();
        let (description, file) = match described {
            Some((description, file)) => (Some(description), file),
            None => (None, None),
        };
        let file = file.as_ref().map(AsFd::as_fd);
        self.send(number, &Answer::Described(description), file.as_slice())
    }

    /// Objects of the client's session behind one of them. (A guest learns of none.)
    pub(super) fn objects(&mut self, number: u32, behind: Object) -> Answer<'static> {
        let session = self.held(number).filter(|of| self.sessions[of].client == Some(number));
        let page = |driver: &mut Own, slot| {
            let engine = driver.engine.as_deref()?;
            Some(engine.objects.page(slot, Some(behind), OBJECTS))
        };
        let objects = session.and_then(|of| self.with_session(of, page)?).unwrap_or_default();
        Answer::Objects { more: objects.len() == OBJECTS, objects }
    }

    /// Regions of a session that the client may see, as far as one answer has room.
    pub(super) fn regions(&mut self, number: u32, session: u32, from: Key) -> Answer<'static> {
        let uid = self.clients.get(number).map_or(u32::MAX, |client| client.uid);
        let held = self.sessions.get(&session).filter(|held| may_see(uid, held.uid));
        let slot = held.map(|held| held.slot);
        let found = self.device.live.command_own(|driver| {
            let of = driver.engine.as_deref_mut()?.session(slot?)?;
            let mut seen = of.regions.range(from..).map(|(key, region)| status(*key, region));
            let regions: Vec<_> = seen.by_ref().take(PAGE).collect();
            Some((regions, seen.next().is_some()))
        });
        let (regions, more) = found.unwrap_or_default();
        Answer::Regions { regions, more }
    }

    /// Ends a session of this name that a program of the user has left: it is kept, or its process
    /// has ended, of which its connection has not told yet.
    pub(super) fn end_former(&mut self, uid: u32, name: Option<&str>) {
        let former = self
            .sessions
            .values()
            .find(|held| held.uid == uid && Some(held.name.as_str()) == name && !held.is_machine);
        let Some(session) = former.map(|held| held.number) else { return };
        let clients = self.clients.of_session(session);
        if clients.iter().any(|at| self.clients.get(*at).is_some_and(|of| of.living().is_some())) {
            return;
        }
        let slot = self.sessions.get(&session).map(|held| held.slot);
        self.end_session(session);
        // The rest is destroyed a part at a time, but the new program may want the ports at once.
        self.device.live.command_own(|driver| slot.map(|slot| end_listeners(driver, slot)));
        self.drop_clients(session, "another program has begun anew under its name");
    }
}

fn status(key: Key, region: &Region) -> RegionStatus {
    let len = match region.entry {
        Entry::Region { bytes, .. } => bytes.len,
        _ => 0,
    };
    RegionStatus { key, len, way: region.way }
}

fn end_listeners(driver: &mut Own, slot: u16) {
    let objects = driver.engine.as_deref().map(|engine| engine.objects.of(slot));
    for object in objects.unwrap_or_default() {
        if let Object::Listener(listener) = object {
            driver.unlisten(listener);
            if let Some(engine) = driver.engine.as_deref_mut() {
                engine.disown(object);
            }
        }
    }
}

fn describe(driver: &mut Own, slot: u16, object: Object) -> Option<Described> {
    let engine = driver.engine.as_deref_mut()?;
    if !engine.objects.holds(slot, object) {
        return None;
    }
    let shared = match object {
        Object::Srq(srq) => engine.srq_record(slot, srq),
        _ => None,
    };
    let of = engine.session(slot)?;
    let description = match object {
        Object::Qp(qpn) => {
            let sides = *of.sides.get(&qpn)?;
            let (send, recv) = driver.nic.query_qp(qpn)?.depths;
            Description::QueuePair {
                send: ring(of, sides.send, send)?,
                recv: ring(of, sides.recv, recv)?,
                managed: sides.managed,
            }
        }
        Object::Srq(srq) => {
            let info = driver.nic.query_srq(srq)?;
            Description::SharedReceives { pd: info.pd, ring: ring(of, shared, info.depth)? }
        }
        Object::Mr(key) => return region(of, key),
        _ => return None,
    };
    Some((description, None))
}

/// The ring of a work queue of so many elements; an empty one if there is no queue.
fn ring(of: &SessionQueues, number: Option<u32>, depth: u32) -> Option<RingInit> {
    let Some(number) = number else { return Some(RingInit::default()) };
    let Some(Queue::Work(work)) = of.queues.get(number as usize)? else { return None };
    let (at, len) = work.ring;
    let stride = u32::try_from(len).ok()?.checked_div(depth)?;
    let addr = RingPlace { number, offset: at as u64 }.to_addr();
    Some(RingInit { addr, depth, stride })
}

fn region(of: &SessionQueues, key: Key) -> Option<Described> {
    let Entry::Region { pd, bytes, access, .. } = of.regions.get(&key)?.entry else { return None };
    let piece = of.piece_at(bytes.place);
    let of_card = piece.and_then(|(_, piece)| piece.of_card.as_ref());
    let of_card = of_card.map(|piece| piece.card().as_fd());
    let piece = piece.map(|(start, _)| start);
    let lent = match bytes.place {
        Place::Lent { number, .. } => of.lent.get(&number),
        _ => None,
    };
    let file = lent.and_then(|lent| lent.file()).or(of_card);
    let file = file.and_then(|file| file.try_clone_to_owned().ok());
    let loan = lent.map(|lent| lent.loan);
    Some((Description::Region { pd, bytes, access, piece, loan }, file))
}
