//! The index: fullness, collisions, readers beside a move, and any bytes.

use super::*;
use crate::memory::Heap;
use crate::tablespace::TablespaceId;

fn table(limit: u64) -> Table<Heap> {
    let geometry = Geometry::for_limit(limit);
    Table::new(Heap::new(geometry.memory_len()), geometry)
}

fn slot(hash: Hash, address: u64) -> Slot {
    Slot { address, len: 1, expiry: 0, hash, tablespace: TablespaceId(0) }
}

#[test]
fn the_index_is_full_at_all_times_and_finds_everything() {
    let table = table(64 << 20);
    let hasher = Hasher::new(3);
    let hashes: Vec<Hash> =
        (0..300_000u64).map(|key| hasher.hash(TablespaceId(0), &key.to_le_bytes())).collect();
    let mut stashed = 0;
    for (key, &hash) in hashes.iter().enumerate() {
        let mut locked = table.lock_for(hash);
        let place = locked.make_room(hash, || true).unwrap_or_else(|_| {
            panic!("{key} {} {} stashed {stashed}", locked.count(), locked.items())
        });
        stashed += u32::from(matches!(place, SlotPlace::Stash(_)));
        locked.insert(place, slot(hash, key as u64));
        let keys = key as u64 + 1;
        if keys.is_multiple_of(10_000) && keys >= 50_000 {
            let load = keys as f64 / (table.index_bytes() / BUCKET * SLOTS as u64) as f64;
            let bytes = table.index_bytes() as f64 / keys as f64;
            assert!(load >= 0.9 && bytes <= 32.0, "{keys}: load {load}, {bytes} bytes a key");
        }
    }
    assert!(stashed < 100, "{stashed} slots found no bucket");
    for (key, &hash) in hashes.iter().enumerate() {
        let wanted = |slot: Slot| (slot.address == key as u64).then_some(());
        let peek = table.peek(hash).unwrap();
        let found = peek.find(hash, wanted).is_some() || peek.may_be_stashed();
        assert!(found && peek.holds());
        assert!(table.lock_for(hash).find(hash, wanted).is_some());
    }
}

#[test]
fn keys_of_one_hash_fill_their_buckets_then_the_stash_and_are_refused() {
    let table = table(1 << 20);
    let hash = Hash::from_id(77).unwrap();
    let mut locked = table.lock_for(hash);
    let mut held = 0;
    while let Ok(place) = locked.make_room(hash, || true) {
        locked.insert(place, slot(hash, held));
        held += 1;
    }
    assert!((10..=40).contains(&held), "{held}");
    for address in (0..held).rev() {
        let wanted = |slot: Slot| (slot.address == address).then_some(());
        let (place, ..) = locked.find(hash, wanted).unwrap();
        locked.remove(place, || ());
        assert!(locked.find(hash, wanted).is_none());
    }
    assert_eq!(locked.items(), 0);
}

#[test]
fn a_reader_notices_that_a_key_moved() {
    let table = table(1 << 20);
    let hash = Hash::from_id(99).unwrap();
    let insert = |address| {
        let mut locked = table.lock_for(hash);
        let place = locked.make_room(hash, || true).unwrap();
        locked.insert(place, slot(hash, address));
        place
    };
    let place = insert(1);
    let peek = table.peek(hash).unwrap();
    assert!(peek.holds());
    table.lock_for(hash).remove(place, || ());
    assert!(!peek.holds());
    let peek = table.peek(hash).unwrap();
    assert!(peek.find(hash, Some).is_none() && peek.holds());
    insert(2);
    assert!(!peek.holds());
}

#[test]
fn any_bytes_can_be_in_the_index() {
    let table = table(1 << 20);
    let mut word = 1u64;
    let (from, to) = (table.geometry.index_at(), table.geometry.bucket_at(0, 64));
    for round in 0..50u64 {
        for at in (from..to).step_by(8) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            table.memory.store(at, word);
        }
        for id in 1..200 {
            let hash = Hash::from_id(id + round * 1000).unwrap();
            if let Some(peek) = table.peek(hash) {
                peek.find(hash, Some);
            }
            let mut locked = table.lock_for(hash);
            if let Some((place, ..)) = locked.find(hash, Some) {
                locked.remove(place, || ());
            }
            if let Ok(place) = locked.make_room(hash, || true) {
                locked.insert(place, slot(hash, id));
            }
        }
    }
}
