//! Slabs: churn against a model, and spans that are emptied.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SPACE: TablespaceId = TablespaceId(3);

struct World {
    blocks: Blocks,
    usage: Usage,
}

impl World {
    fn new(limit: u64) -> World {
        let geometry = Geometry::for_limit(limit);
        World { blocks: Blocks::new(geometry), usage: Usage::new(limit) }
    }

    fn alloc(&self, len: u64) -> Option<Block> {
        self.blocks.alloc(&self.usage, SPACE, len)
    }

    fn free(&self, at: u64) -> Result<(TablespaceId, u64), NoSuchBlock> {
        self.blocks.free(&self.usage, at)
    }
}

fn step() -> impl Strategy<Value = (bool, u64, prop::sample::Index)> {
    (any::<bool>(), 1u64..300_000, any::<prop::sample::Index>())
}

proptest! {
    #[test]
    fn blocks_do_not_overlap_and_all_pages_come_back(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let world = World::new(16 << 20);
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for (takes, len, index) in steps {
            // Short blocks more often.
            let len = if len % 3 == 0 { len } else { len % 2000 + 1 };
            if takes {
                let Some(block) = world.alloc(len) else { continue };
                prop_assert!(block.size >= len);
                prop_assert!(block.at.is_multiple_of(16));
                let before = held.range(..block.at).next_back();
                prop_assert!(before.is_none_or(|(at, size)| at + size <= block.at));
                let after = held.range(block.at..).next();
                prop_assert!(after.is_none_or(|(&at, _)| block.at + block.size <= at));
                held.insert(block.at, block.size);
            } else if !held.is_empty() {
                let (&at, &size) = held.iter().nth(index.index(held.len())).unwrap();
                held.remove(&at);
                prop_assert_eq!(world.free(at), Ok((SPACE, size)));
                prop_assert_eq!(world.free(at), Err(NoSuchBlock));
            }
            prop_assert!(world.usage.used() <= world.usage.limit());
            prop_assert!(world.usage.used() >= held.values().sum());
        }
        for at in held.into_keys() {
            prop_assert!(world.free(at).is_ok());
        }
        world.blocks.give_up_empty(&world.usage);
        prop_assert_eq!(world.usage.used(), 0);
    }

    #[test]
    fn any_place_can_be_freed(places in prop::collection::vec(any::<u64>(), 1..50)) {
        let world = World::new(1 << 20);
        let block = world.alloc(100).unwrap();
        let area = world.blocks.geometry.area_at;
        for place in places {
            let near = [area + place % (1 << 20), area + place % 64 * PAGE, block.at + place % 99];
            for at in near.into_iter().chain([place]) {
                prop_assert!(at == block.at || world.free(at).is_err());
            }
        }
        prop_assert!(world.free(block.at).is_ok());
    }
}

#[test]
fn sparse_spans_are_emptied_into_others() {
    let world = World::new(4 << 20);
    let held: Vec<u64> = (0..2000).map(|_| world.alloc(500).unwrap().at).collect();
    let before = world.usage.used();
    assert!(world.blocks.drain(&mut (0, 0), true).is_none(), "all spans are full but one");
    // One of four stays.
    let kept = |index: usize| index.is_multiple_of(4);
    for (index, &at) in held.iter().enumerate() {
        if !kept(index) {
            world.free(at).unwrap();
        }
    }
    let mut hint = (0, 0);
    while let Some(drained) = world.blocks.drain(&mut hint, false) {
        for at in drained.blocks {
            world.alloc(500).unwrap();
            world.free(at).unwrap();
        }
    }
    assert!(world.usage.used() * 5 / 2 < before, "{} of {before}", world.usage.used());
    let info = world.blocks.infos(SPACE);
    assert_eq!(info.iter().map(|info| info.used).sum::<u64>(), 500);
}

#[test]
fn a_span_that_cannot_be_drained_gives_blocks_again() {
    let world = World::new(4 << 20);
    let held: Vec<u64> = (0..200).map(|_| world.alloc(1000).unwrap().at).collect();
    for &at in held.iter().skip(1).step_by(2) {
        world.free(at).unwrap();
    }
    let drained = world.blocks.drain(&mut (0, 0), true).unwrap();
    world.blocks.undrain(&drained);
    let used = world.usage.used();
    for _ in 0..100 {
        world.alloc(1000).unwrap();
    }
    assert_eq!(world.usage.used(), used);
}
