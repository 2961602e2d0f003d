//! The images: 8x8 pixels of 0..=16, each labelled with its digit. Pure; the data are part of the
//! program. `train.py` creates both files; `data/ATTRIBUTION.md` names their authors.

use crate::error::Error;

/// 8 rows of 8 pixels, top row first, each 0..=16 (more is more ink).
pub type Pixels = [f64; 64];

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub pixels: Pixels,
    /// The digit, 0 to 9.
    pub label: usize,
}

/// The samples that were not used to train a model or to choose a threshold.
pub fn held_out() -> Vec<Sample> {
    parse(include_str!("../data/test.csv")).expect("data/test.csv is checked by a test")
}

pub fn training() -> Vec<Sample> {
    parse(include_str!("../data/train.csv")).expect("data/train.csv is checked by a test")
}

/// Validates a list of numbers as pixels.
///
/// # Errors
/// The reason, when the list is not 64 numbers of 0..=16.
pub fn pixels(numbers: &[f64]) -> Result<Pixels, String> {
    let pixels: Pixels =
        numbers.try_into().map_err(|_| format!("{} numbers instead of 64", numbers.len()))?;
    match pixels.iter().find(|pixel| !(0.0..=16.0).contains(*pixel)) {
        Some(pixel) => Err(format!("pixel {pixel} is not in 0..=16")),
        None => Ok(pixels),
    }
}

fn parse(csv: &str) -> Result<Vec<Sample>, Error> {
    csv.lines()
        .enumerate()
        .map(|(index, line)| {
            sample(line).map_err(|reason| Error::Sample { line: index + 1, reason })
        })
        .collect()
}

fn sample(line: &str) -> Result<Sample, String> {
    let (image, label) = line.rsplit_once(',').ok_or("no comma")?;
    let numbers = image
        .split(',')
        .map(|n| n.parse().map_err(|_| format!("{n:?} is not a number")))
        .collect::<Result<Vec<f64>, _>>()?;
    let label = label
        .parse()
        .ok()
        .filter(|label| *label <= 9)
        .ok_or_else(|| format!("{label:?} is not a digit"))?;
    Ok(Sample { pixels: pixels(&numbers)?, label })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shipped_samples_are_complete_and_contain_every_digit() {
        let (train, test) = (training(), held_out());
        assert_eq!((train.len(), test.len()), (1197, 600));
        for digit in 0..=9 {
            assert!(test.iter().filter(|sample| sample.label == digit).count() >= 40, "{digit}");
        }
    }

    #[test]
    fn no_held_out_sample_was_trained_on() {
        let train = training();
        assert!(held_out().iter().all(|sample| !train.contains(sample)));
    }

    #[test]
    fn invalid_line_is_refused_with_its_number() {
        let good = format!("{}7\n", "0,".repeat(64));
        for bad in [
            "",
            "1",
            &"0,".repeat(64),
            &format!("{}10", "0,".repeat(64)),
            &format!("{}7", "17,".repeat(64)),
            &format!("{}7", "0,".repeat(63)),
        ] {
            let error = parse(&format!("{good}{bad}\n")).unwrap_err().to_string();
            assert!(error.starts_with("sample 2: "), "{bad}: {error}");
        }
    }
}
