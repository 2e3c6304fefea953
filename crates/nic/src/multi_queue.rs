//! The Multi-Queue of StRoM §4.1: one linked list for each queue pair, all in one pool.
//!
//! Its memory is proportional to the work that is outstanding on the whole card, not to the number
//! of queue pairs times the depth of their queues. A queue pair holds only the head, the tail and
//! the length of its list. The pool grows when needed, up to its limit, and never shrinks.

const NIL: u32 = u32::MAX;

/// A pool of list nodes.
#[derive(Debug)]
pub(crate) struct MultiQueue<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    limit: usize,
    in_use: usize,
    /// Those of them that the limit does not count.
    beyond: usize,
}

#[derive(Debug)]
struct Node<T> {
    next: u32,
    item: T,
}

/// One list of a [`MultiQueue`]. Its owner keeps this value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(crate) const EMPTY: List = List { head: NIL, tail: NIL, len: 0 };

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A position in a list, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cursor(u32);

impl Cursor {
    pub(crate) const NONE: Cursor = Cursor(NIL);

    pub(crate) fn is_none(self) -> bool {
        self.0 == NIL
    }
}

impl<T: Copy> MultiQueue<T> {
    pub(crate) fn new(limit: usize) -> MultiQueue<T> {
        MultiQueue { nodes: Vec::new(), free: NIL, limit, in_use: 0, beyond: 0 }
    }

    /// Appends to `list`. `None` if the pool is at its limit.
    #[inline]
    pub(crate) fn push(&mut self, list: &mut List, item: T) -> Option<Cursor> {
        (self.counted() < self.limit).then(|| self.append(list, item))
    }

    /// As [`MultiQueue::push`], but a list gets only as much as is left for the others, and one
    /// item always: so those whose items stay for ever keep no other out. (These are the dynamic
    /// thresholds by which switches share their memory: Choudhury and Hahne, 1998.)
    #[inline]
    pub(crate) fn push_share(&mut self, list: &mut List, item: T) -> Option<Cursor> {
        let left = self.limit.saturating_sub(self.counted());
        (list.is_empty() || list.len() < left).then(|| self.append(list, item))
    }

    /// Appends an item that the limit does not count: [`MultiQueue::pop_beyond`] takes it.
    pub(crate) fn push_beyond(&mut self, list: &mut List, item: T) -> Cursor {
        self.beyond += 1;
        self.append(list, item)
    }

    fn append(&mut self, list: &mut List, item: T) -> Cursor {
        let node = Node { next: NIL, item };
        let at = if self.free != NIL {
            let at = self.free;
            self.free = self.nodes[at as usize].next;
            self.nodes[at as usize] = node;
            at
        } else {
            debug_assert!(self.nodes.len() < NIL as usize, "a node without a number");
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        match list.tail {
            NIL => list.head = at,
            tail => self.nodes[tail as usize].next = at,
        }
        list.tail = at;
        list.len += 1;
        self.in_use += 1;
        Cursor(at)
    }

    /// Takes the first item.
    pub(crate) fn pop(&mut self, list: &mut List) -> Option<T> {
        let at = list.head;
        let node = self.nodes.get_mut(at as usize)?;
        list.head = node.next;
        list.len -= 1;
        self.in_use -= 1;
        if list.head == NIL {
            list.tail = NIL;
        }
        node.next = self.free;
        self.free = at;
        Some(self.nodes[at as usize].item)
    }

    /// As [`MultiQueue::pop`], for a list of items that the limit does not count.
    pub(crate) fn pop_beyond(&mut self, list: &mut List) -> Option<T> {
        let item = self.pop(list)?;
        self.beyond -= 1;
        Some(item)
    }

    /// How many items the limit counts.
    #[inline]
    pub(crate) fn counted(&self) -> usize {
        self.in_use - self.beyond
    }

    /// How many items all lists have together.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node<T>>()
    }

    pub(crate) fn front(&self, list: &List) -> Option<&T> {
        self.nodes.get(list.head as usize).map(|n| &n.item)
    }

    pub(crate) fn first(&self, list: &List) -> Cursor {
        Cursor(list.head)
    }

    pub(crate) fn next(&self, at: Cursor) -> Cursor {
        self.nodes.get(at.0 as usize).map_or(Cursor::NONE, |n| Cursor(n.next))
    }

    pub(crate) fn get(&self, at: Cursor) -> Option<&T> {
        self.nodes.get(at.0 as usize).map(|n| &n.item)
    }

    pub(crate) fn get_mut(&mut self, at: Cursor) -> Option<&mut T> {
        self.nodes.get_mut(at.0 as usize).map(|n| &mut n.item)
    }

    /// The first position in `list` with an item that `fits`.
    pub(crate) fn find(&self, list: &List, mut fits: impl FnMut(&T) -> bool) -> Cursor {
        let mut at = self.first(list);
        while let Some(item) = self.get(at) {
            if fits(item) {
                return at;
            }
            at = self.next(at);
        }
        Cursor::NONE
    }

    /// The last position in `list` with an item that `fits`.
    pub(crate) fn find_last(&self, list: &List, mut fits: impl FnMut(&T) -> bool) -> Cursor {
        let (mut at, mut found) = (self.first(list), Cursor::NONE);
        while let Some(item) = self.get(at) {
            if fits(item) {
                found = at;
            }
            at = self.next(at);
        }
        found
    }

    /// How many nodes of the pool are in no list.
    #[cfg(test)]
    fn spare(&self) -> usize {
        let mut n = 0;
        let mut at = self.free;
        while at != NIL {
            n += 1;
            at = self.nodes[at as usize].next;
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_share_the_pool_and_give_back() {
        let mut pool = MultiQueue::new(4);
        let (mut a, mut b) = (List::EMPTY, List::EMPTY);
        for i in 0..2 {
            pool.push(&mut a, i).unwrap();
            pool.push(&mut b, 10 + i).unwrap();
        }
        assert!(pool.push(&mut a, 9).is_none(), "the limit holds for all lists together");
        let mut back = List::EMPTY;
        core::mem::swap(&mut a, &mut back);
        assert_eq!([pool.pop(&mut back), pool.pop(&mut back)], [Some(0), Some(1)]);
        for i in 0..2 {
            pool.push(&mut a, i).unwrap();
        }
        assert_eq!(pool.pop(&mut a), Some(0));
        assert!(pool.push(&mut b, 12).is_some());
        assert_eq!((pool.pop(&mut b), pool.pop(&mut b)), (Some(10), Some(11)));
        assert_eq!(pool.front(&b), Some(&12));
        assert_eq!((a.len(), b.len()), (1, 1));
        assert_eq!(pool.pop(&mut a), Some(1));
        assert_eq!(pool.pop(&mut a), None);
        assert!(a.is_empty());
        assert_eq!(pool.spare(), 3);
    }

    #[test]
    fn what_the_limit_does_not_count_takes_no_room() {
        let mut pool = MultiQueue::new(1);
        let (mut counted, mut others) = (List::EMPTY, List::EMPTY);
        for i in 0..3 {
            pool.push_beyond(&mut others, i);
        }
        assert_eq!((pool.in_use(), pool.counted()), (3, 0));
        pool.push(&mut counted, 7).unwrap();
        assert!(pool.push(&mut counted, 8).is_none());
        assert_eq!(pool.pop_beyond(&mut others), Some(0));
        assert!(pool.push(&mut counted, 8).is_none(), "its node is free, and the limit holds");
        assert_eq!(pool.pop(&mut counted), Some(7));
        pool.push(&mut counted, 8).unwrap();
        assert_eq!((pool.in_use(), pool.counted()), (3, 1));
    }
}
