//! Many puts under way at once.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use remora::wait_for;
use remora_store::client::{AsyncStoreClient, Put, StoreError};

/// How long the store may take until one of the puts that are under way has ended.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is put, and where it comes from.
#[derive(Clone, Debug, Default)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// When it expires, in ms of Unix time; 0 for as the tablespace has it, and
    /// [`EXPIRY_NEVER`](remora_store::way::call::EXPIRY_NEVER) for never.
    pub expires_ms: u64,
    /// For a person; may be empty.
    pub place: String,
}

type Under<'a> = Pin<Box<dyn Future<Output = (String, Result<u64, StoreError>)> + 'a>>;

/// Puts all items that `next` has, `in_flight` of them at once; it is told how many have been put.
/// Returns how many were put. The first that fails ends it, and then some later ones may have been
/// put.
pub fn put_all(
    client: &AsyncStoreClient,
    in_flight: usize,
    mut next: impl FnMut(u64) -> Result<Option<Item>>,
) -> Result<u64> {
    let (mut under, mut done, mut ended) = (Vec::<Under<'_>>::new(), 0, false);
    loop {
        while !ended && under.len() < in_flight {
            match next(done)? {
                Some(item) => under.push(Box::pin(put(client, item))),
                None => ended = true,
            }
        }
        if under.is_empty() {
            return Ok(done);
        }
        let step = pin!(poll_fn(|context| poll_all(&mut under, context)));
        match wait_for(step, PATIENCE) {
            Some(over) => done += over?,
            None => bail!("the store has not answered for {} s", PATIENCE.as_secs()),
        }
    }
}

async fn put(client: &AsyncStoreClient, item: Item) -> (String, Result<u64, StoreError>) {
    let how = Put { expires_ms: item.expires_ms, ..Put::default() };
    let done = client.put_with(&item.key, &item.value, &how).await;
    // Nothing is asked of the key, so it was put.
    (item.place, done.map(|version| version.unwrap_or(0)))
}

/// Polls all; ready with how many have ended, if any has.
fn poll_all(under: &mut Vec<Under<'_>>, context: &mut Context<'_>) -> Poll<Result<u64>> {
    let (before, mut failed) = (under.len(), None);
    under.retain_mut(|put| match put.as_mut().poll(context) {
        Poll::Pending => true,
        Poll::Ready((_, Ok(_))) => false,
        Poll::Ready((place, Err(error))) => {
            failed.get_or_insert((place, error));
            false
        }
    });
    match (failed, before - under.len()) {
        (Some((place, error)), _) => Poll::Ready(Err(error).context(place)),
        (None, 0) => Poll::Pending,
        (None, over) => Poll::Ready(Ok(over as u64)),
    }
}
