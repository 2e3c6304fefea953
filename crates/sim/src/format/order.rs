//! An order in which nothing comes before what it depends on.

/// The items in an order that has each behind those that it names; items that do not depend on each
/// other keep their order as far as that allows.
///
/// # Errors
/// An item of a circle, or one that depends on a circle.
pub(super) fn order(depends: &[Vec<u32>]) -> Result<Vec<u32>, usize> {
    let mut missing: Vec<u32> = depends.iter().map(|on| on.len() as u32).collect();
    let mut behind: Vec<Vec<u32>> = vec![Vec::new(); depends.len()];
    for (item, on) in (0u32..).zip(depends) {
        on.iter().for_each(|other| behind[*other as usize].push(item));
    }
    let ready = (0..depends.len() as u32).filter(|item| missing[*item as usize] == 0);
    let mut line: std::collections::BinaryHeap<_> = ready.map(core::cmp::Reverse).collect();
    let mut order = Vec::with_capacity(depends.len());
    while let Some(core::cmp::Reverse(item)) = line.pop() {
        order.push(item);
        for next in &behind[item as usize] {
            missing[*next as usize] -= 1;
            if missing[*next as usize] == 0 {
                line.push(core::cmp::Reverse(*next));
            }
        }
    }
    match missing.iter().position(|missing| *missing > 0) {
        Some(item) => Err(item),
        None => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_depended_on_comes_first() {
        assert_eq!(order(&[vec![2], vec![], vec![1]]), Ok(vec![1, 2, 0]));
        assert_eq!(order(&[vec![], vec![2], vec![1]]), Err(1));
        assert_eq!(order(&[vec![0]]), Err(0));
    }
}
