//! Requests that take effect once, however often they are sent.
//!
//! A client numbers its requests from 1 on and has one under way at a time. Its request is logged
//! as two records, one after the other: who asks for what, with the answer, and the change. Where
//! the second is missing, because another primary's record follows, the request has had no effect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::log::{Fields, Operation, Position};
use crate::request::RequestId;

/// How many clients are remembered; the one that has been silent for longest is forgotten.
pub const CLIENTS_MAX: usize = 1 << 16;
/// The longest answer that is kept, in bytes.
pub const ANSWER_MAX: usize = 1 << 10;

/// Why a request with a number is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoRequest {
    /// A later one was carried out already.
    #[error("request {0} is an old one: a client has one request under way at a time")]
    Old(u64),
    /// Nobody knows whether it was carried out.
    #[error(
        "request {0} is of a client that is not known any more: look whether it took effect, and \
         begin anew under another number"
    )]
    Forgotten(u64),
    /// Its answer is too long to be kept.
    #[error("an answer that is kept has at most {ANSWER_MAX} bytes, not {0}")]
    Answer(usize),
}

/// Which request of which client, as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Asker {
    client: u64,
    sequence: u64,
}

/// A client's last request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Done {
    sequence: u64,
    position: Position,
    answer: Vec<u8>,
}

/// The last request of each client. It follows from the log alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Requests {
    done: BTreeMap<u64, Done>,
    by_age: BTreeMap<Position, u64>,
    /// The last change of the last client that was forgotten: the others' are later.
    forgotten: Position,
    /// A request whose change must be the next record.
    begun: Option<(Position, Asker, Vec<u8>)>,
}

impl Requests {
    /// What became of a request: the position of its change and its answer, or nothing if it was
    /// never carried out.
    ///
    /// # Errors
    /// See [`NoRequest`].
    pub fn find(&self, id: RequestId) -> Result<Option<(Position, &[u8])>, NoRequest> {
        match self.done.get(&id.client) {
            Some(done) if done.sequence == id.sequence => {
                Ok(Some((done.position, &done.answer[..])))
            }
            Some(done) if done.sequence > id.sequence => Err(NoRequest::Old(id.sequence)),
            None if id.sequence > 1 || self.forgotten > id.since => {
                Err(NoRequest::Forgotten(id.sequence))
            }
            _ => Ok(None),
        }
    }

    /// Takes note of a record that was applied.
    pub(super) fn note(&mut self, position: Position, fields: &Fields<'_>) {
        let begun = self.begun.take();
        match fields.operation {
            Operation::Request => {
                if let Some(id) = id_of(fields) {
                    let answer = fields.value[..fields.value.len().min(ANSWER_MAX)].to_vec();
                    self.begun = Some((position, id, answer));
                }
            }
            Operation::Epoch => {}
            _ => {
                if let Some((before, id, answer)) = begun
                    && position.follows(before)
                {
                    self.insert(position, id, answer);
                }
            }
        }
    }

    fn insert(&mut self, position: Position, id: Asker, answer: Vec<u8>) {
        let done = Done { sequence: id.sequence, position, answer };
        if let Some(old) = self.done.insert(id.client, done) {
            self.by_age.remove(&old.position);
        }
        self.by_age.insert(position, id.client);
        if self.done.len() > CLIENTS_MAX
            && let Some((position, client)) = self.by_age.pop_first()
        {
            self.forgotten = position;
            self.done.remove(&client);
        }
    }
}

/// The record that says who asks; `key` takes the request's numbers.
pub(super) fn record<'a>(id: RequestId, answer: &'a [u8], key: &'a mut [u8; 16]) -> Fields<'a> {
    key[..8].copy_from_slice(&id.client.to_le_bytes());
    key[8..].copy_from_slice(&id.sequence.to_le_bytes());
    Fields { key, value: answer, ..Fields::of(Operation::Request) }
}

fn id_of(fields: &Fields<'_>) -> Option<Asker> {
    let (client, sequence) = fields.key.split_first_chunk::<8>()?;
    let sequence: &[u8; 8] = sequence.try_into().ok()?;
    Some(Asker { client: u64::from_le_bytes(*client), sequence: u64::from_le_bytes(*sequence) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: RequestId = RequestId { client: 9, sequence: 1, since: Position::NONE };

    fn note(requests: &mut Requests, counter: u64, fields: &Fields<'_>) {
        requests.note(Position::new(1, counter), fields);
    }

    fn request(requests: &mut Requests, counter: u64, id: RequestId) {
        let mut key = [0; 16];
        note(requests, counter, &record(id, b"answer", &mut key));
        note(requests, counter + 1, &Fields::of(Operation::Flush));
    }

    #[test]
    fn a_request_is_found_once_its_change_is_there() {
        let (mut requests, mut key) = (Requests::default(), [0; 16]);
        note(&mut requests, 1, &record(ID, b"answer", &mut key));
        assert_eq!(requests.find(ID), Ok(None));
        note(&mut requests, 2, &Fields::of(Operation::Flush));
        assert_eq!(requests.find(ID), Ok(Some((Position::new(1, 2), &b"answer"[..]))));
        assert_eq!(requests.find(RequestId { sequence: 2, ..ID }), Ok(None));
        request(&mut requests, 3, RequestId { sequence: 2, ..ID });
        assert_eq!(requests.find(ID), Err(NoRequest::Old(1)));
        assert_eq!(requests.by_age.len(), 1);
    }

    /// The primary died between the two records: what the next one writes is not the change.
    #[test]
    fn another_primary_s_record_is_not_the_change() {
        let (mut requests, mut key) = (Requests::default(), [0; 16]);
        note(&mut requests, 1, &record(ID, b"", &mut key));
        requests.note(Position::new(2, 2), &Fields::of(Operation::Epoch));
        requests.note(Position::new(2, 3), &Fields::of(Operation::Flush));
        assert_eq!(requests.find(ID), Ok(None));
    }

    #[test]
    fn who_was_silent_for_longest_is_forgotten_and_told_so() {
        let mut requests = Requests::default();
        for client in 0..=CLIENTS_MAX as u64 {
            request(&mut requests, client * 2 + 1, RequestId { client, ..ID });
        }
        let asks = |client, sequence| requests.find(RequestId { client, sequence, ..ID });
        assert_eq!(asks(0, 2), Err(NoRequest::Forgotten(2)));
        assert!(asks(1, 1).unwrap().is_some());
        assert_eq!(requests.by_age.len(), CLIENTS_MAX);
    }

    /// Its first request took effect, and its retry must not; a client that began later is new.
    #[test]
    fn a_forgotten_client_s_first_request_is_not_taken_for_new() {
        let mut requests = Requests::default();
        for client in 0..=CLIENTS_MAX as u64 {
            request(&mut requests, client * 2 + 1, RequestId { client, ..ID });
        }
        assert_eq!(requests.find(RequestId { client: 0, ..ID }), Err(NoRequest::Forgotten(1)));
        let began =
            |counter| RequestId { client: u64::MAX, since: Position::new(1, counter), ..ID };
        assert_eq!(requests.find(began(1)), Err(NoRequest::Forgotten(1)));
        assert_eq!(requests.find(began(2)), Ok(None), "the first client's change was at 1.2");
    }
}
