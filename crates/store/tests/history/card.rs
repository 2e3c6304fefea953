//! Operations of clients over the card.

use remora_store::client::{About, Put, StoreClient, StoreError};
use remora_store::way::call::{Condition, Placement};

use super::value::{appended, bytes_of, value_of};
use super::{Op, Ret};

/// A way to read.
pub(crate) type Get =
    fn(&mut StoreClient, &[u8], &mut Vec<u8>) -> Result<Option<About>, StoreError>;

/// Carries out an operation, a read in this way.
pub(crate) fn ask(
    client: &mut StoreClient,
    get: Get,
    key: &[u8],
    op: Op,
) -> Result<Ret, StoreError> {
    Ok(match op {
        Op::Get => {
            let mut value = Vec::new();
            let found = get(client, key, &mut value)?;
            Ret::Value(found.map(|_| value_of(&value)))
        }
        Op::Set(value) => client.put(key, &bytes_of(value)).map(|_| Ret::Done)?,
        Op::Delete => Ret::Did(client.delete(key)?),
        Op::Swap(old, new) => {
            let old = bytes_of(old);
            // As over the other ways: the new value has no end.
            let how = Put { condition: Condition::Value(&old), expires_ms: 0, ..Put::default() };
            Ret::Did(client.put_with(key, &bytes_of(new), &how)?.is_some())
        }
        Op::Add(more) => Ret::Sum(client.count(key, more.into())?.try_into().expect("a sum")),
        Op::Append(more) => {
            let how = Put { placement: Placement::Append, ..Put::default() };
            client.put_with(key, &appended(more), &how)?.expect("no condition");
            Ret::Done
        }
        Op::Flush => client.flush().map(|()| Ret::Done)?,
        Op::End(_) | Op::GetEnd(_) | Op::HasEnd => panic!("{op:?} is of Redis' clients"),
    })
}
