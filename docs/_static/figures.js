// A figure is opened in its own size when it is clicked.
document.addEventListener("click", (event) => {
  if (event.target.matches(".result-figure img, .cell_output img")) {
    window.location.href = event.target.src;
  }
});
